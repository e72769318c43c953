"""Which parts the natural-gradient rule can work with, and why it cannot with others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bayesrule.curvature import Curvature
from bayesrule.matrices import Structure
from bayesrule.posteriors import Family
from bayesrule.rules.momentum import HeavyBall

if TYPE_CHECKING:
    from bayesrule.rules.natural import Natural


# Options that say how a precision moves.
_OF_PRECISIONS = ("square_root", "debias", "retract", "fixed_precision", "damping")


def refuse_unused(rule: Natural) -> None:
    """Options that would have no effect together are refused."""
    unused = {
        "debias=True corrects an average that is used as a precision or a root: leave "
        "fixed_precision out": rule.debias and rule.fixed_precision and not rule.square_root,
        "retract=True moves the precision, which fixed_precision=True keeps": rule.retract
        and rule.fixed_precision,
        "damping is added to a precision that moves, which fixed_precision=True keeps": (
            rule.damping > 0 and rule.fixed_precision and not rule.square_root
        ),
        "inverse_every is for a precision that moves, which fixed_precision=True keeps": (
            rule.inverse_every > 1 and rule.fixed_precision
        ),
    }
    for reason, wrong in unused.items():
        if wrong:
            raise ValueError(f"{reason}.")


def check_fit(rule: Natural, structure: Structure, family: Family, curvature: Curvature) -> None:
    """Refuses a curvature or a structure that this natural-gradient rule cannot work with."""
    kind, shape = type(curvature).__name__, type(structure).__name__
    useless = [name for name in _OF_PRECISIONS if getattr(rule, name)]
    if not structure.moves and useless:
        raise ValueError(
            f"{family!r} has no precision that moves, so {useless[0]} would do nothing; leave "
            "it out."
        )
    moving = rule.square_root or rule.moves_precision(family)
    if moving and not curvature.gives_curvature:
        raise ValueError(
            f"{kind}() gives nothing to move the precision with; use PerExample(), Fisher(), "
            "GGN() or Price(), or Natural(fixed_precision=True)."
        )
    if not moving and curvature.gives_curvature:
        raise ValueError(
            f"The precision of {family!r} stays as it is, so {kind}() would be worked out for "
            "nothing; use NoCurvature()."
        )
    if curvature.slopes_only or (curvature.diagonal_only and not structure.elementwise):
        raise ValueError(
            f"{kind}() gives slopes or a diagonal, but natural gradients of {shape}() need a "
            "curvature of that structure; use PerExample(), Fisher() or GGN(), or the rule Elbo()."
        )
    if not curvature.whole_data:
        raise ValueError(
            f"{kind}() stands for its batch alone; use it with the rule Conditioning(), or "
            "PerExample(), Fisher() or GGN()."
        )
    if structure.mixes_entropy and moving and not rule.retract:
        raise ValueError(
            f"The curvature of {family!r} holds that of its entropy, which may be negative; use "
            "Natural(retract=True)."
        )
    if curvature.may_be_negative and moving:
        _check_negative(rule, structure, curvature)
    if structure.positive_part and rule.retract:
        raise ValueError(
            f"{shape}() is never negative, so retract=True would do nothing; leave it out."
        )
    if structure.needs_layers and curvature.gives_curvature and not curvature.needs_rows:
        raise ValueError(
            f"{shape}() is made layer by layer from single examples, which {kind}() does not look "
            "at: use Fisher(), GGN() or PerExample()."
        )
    if structure.only_positive and (curvature.needs_draws or isinstance(rule.momentum, HeavyBall)):
        raise ValueError(
            f"{shape}() can only be averaged over positive curvature: use PerExample(), Fisher() "
            "or GGN(), and Average() instead of HeavyBall()."
        )
    if rule.square_root and not structure.elementwise:
        raise ValueError(
            f"square_root=True takes the root of a diagonal: use Diagonal(), got {shape}()."
        )


def _check_negative(rule: Natural, structure: Structure, curvature: Curvature) -> None:
    kind = type(curvature).__name__
    # A full matrix says so itself when it is not positive; Newton's method counts on it.
    risky = curvature.needs_draws or not (structure.says_if_negative or structure.positive_part)
    if risky and not rule.retract:
        raise ValueError(f"{kind}() may be negative; use Natural(retract=True).")
    if rule.square_root:
        raise ValueError(
            f"{kind}() may be negative and then has no square root; use SquaredGradient(), "
            "PerExample(), Fisher() or GGN(), or Natural(square_root=False)."
        )


def stack_obstacle(rule: Natural, structure: Structure, curvature: Curvature) -> str | None:
    """Why the steps of many nets cannot be taken together, in words; None if they can."""
    if structure.elementwise:
        return None
    # What is neither moved nor looked at may have any structure.
    unmoved = rule.fixed_precision and not curvature.needs_rows and curvature.of_weights
    fits = curvature.needs_rows if structure.layered else not curvature.needs_draws
    if unmoved or (structure.stacks and fits):
        return None
    return f"a covariance of the structure {type(structure).__name__}"
