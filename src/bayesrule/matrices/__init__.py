"""Structures of precisions and curvatures."""

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.blocks import BlockMatrix, Blocks
from bayesrule.matrices.dense import Dense, DenseMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix, Isotropic, IsotropicMatrix
from bayesrule.matrices.known import Known, KnownMatrix
from bayesrule.matrices.kronecker import Kronecker, KroneckerMatrix
from bayesrule.matrices.low_rank import LowRank, LowRankMatrix
from bayesrule.matrices.tridiagonal import BlockTridiagonal
from bayesrule.matrices.tridiagonal_matrix import BlockTridiagonalMatrix

__all__ = [
    "BlockMatrix",
    "BlockTridiagonal",
    "BlockTridiagonalMatrix",
    "Blocks",
    "Dense",
    "DenseMatrix",
    "Diagonal",
    "DiagonalMatrix",
    "Isotropic",
    "IsotropicMatrix",
    "Known",
    "KnownMatrix",
    "Kronecker",
    "KroneckerMatrix",
    "LowRank",
    "LowRankMatrix",
    "Matrix",
    "Structure",
]
