"""Structures of precisions and curvatures."""

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.blocks import BlockMatrix, Blocks, Known, KnownMatrix
from bayesrule.matrices.dense import Dense, DenseMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix, Isotropic, IsotropicMatrix
from bayesrule.matrices.kronecker import Kronecker, KroneckerMatrix
from bayesrule.matrices.low_rank import LowRank, LowRankMatrix
from bayesrule.matrices.tridiagonal import BlockTridiagonal, BlockTridiagonalMatrix

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
