"""Structures of precisions and curvatures."""

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.dense import Dense, DenseMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix, Isotropic, IsotropicMatrix
from bayesrule.matrices.low_rank import LowRank, LowRankMatrix
from bayesrule.matrices.subset import Subset, SubsetMatrix

__all__ = [
    "Dense",
    "DenseMatrix",
    "Diagonal",
    "DiagonalMatrix",
    "Isotropic",
    "IsotropicMatrix",
    "LowRank",
    "LowRankMatrix",
    "Matrix",
    "Structure",
    "Subset",
    "SubsetMatrix",
]
