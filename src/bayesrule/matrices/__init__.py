"""Structures of precisions and curvatures."""

from bayesrule.matrices._base import Matrix, Structure
from bayesrule.matrices.blocks import BlockMatrix, Blocks, Known, KnownMatrix
from bayesrule.matrices.dense import Dense, DenseMatrix
from bayesrule.matrices.diagonal import Diagonal, DiagonalMatrix, Isotropic, IsotropicMatrix
from bayesrule.matrices.kronecker import Kronecker, KroneckerMatrix
from bayesrule.matrices.low_rank import LowRank, LowRankMatrix
from bayesrule.matrices.tridiagonal import BlockTridiagonal, BlockTridiagonalMatrix

__all__ = [
    # structures
    "BlockTridiagonal", "Blocks", "Dense", "Diagonal", "Isotropic", "Known", "Kronecker", "LowRank",
    "Structure",
    # their matrices
    "BlockMatrix", "BlockTridiagonalMatrix", "DenseMatrix", "DiagonalMatrix", "IsotropicMatrix",
    "KnownMatrix", "KroneckerMatrix", "LowRankMatrix", "Matrix",
]  # fmt: skip
