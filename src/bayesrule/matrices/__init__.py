"""Structures of precisions and curvatures."""

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.dense import Dense, DenseMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix, Isotropic, IsotropicMatrix
from bayesrule.matrices.kronecker import Kronecker, KroneckerMatrix
from bayesrule.matrices.low_rank import LowRank, LowRankMatrix
from bayesrule.matrices.subset import Subset, SubsetMatrix
from bayesrule.matrices.tridiagonal import BlockTridiagonal
from bayesrule.matrices.tridiagonal_matrix import BlockTridiagonalMatrix

__all__ = [
    "BlockTridiagonal",
    "BlockTridiagonalMatrix",
    "Dense",
    "DenseMatrix",
    "Diagonal",
    "DiagonalMatrix",
    "Isotropic",
    "IsotropicMatrix",
    "Kronecker",
    "KroneckerMatrix",
    "LowRank",
    "LowRankMatrix",
    "Matrix",
    "Structure",
    "Subset",
    "SubsetMatrix",
]
