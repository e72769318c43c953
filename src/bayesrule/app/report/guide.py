"""How to read the report, in plain words."""

from __future__ import annotations

from .columns import columns
from .contents import Comparison
from .svg import escape

_COMMON = (
    ("Two kinds of uncertainty",
     "Epistemic uncertainty is what the model does not know because it has seen too little data: "
     "it shrinks with more data. Aleatoric uncertainty is noise in the data itself: it stays. "
     "A useful method has high epistemic uncertainty where it is wrong."),
    ("Is the lead real?",
     "Each method saw the same splits into training and test rows. The number after ± is the "
     "standard error over the splits. Differences smaller than about twice that may be luck."),
    ("How were the rows used?",
     "Scores are means over all splits. Pictures of single rows, calibration and confusion come "
     "from the test rows of the first split."),
)  # fmt: skip

_REGRESSION = (
    ("Coverage",
     "If a method says “90 % interval”, nine true values in ten should lie inside. The coverage "
     "picture shows this for every level. On the dashed line the intervals are right."),
    ("Which number matters?",
     "RMSE looks at the predicted mean only. The log-likelihood and the CRPS judge the whole "
     "prediction: being confident and wrong costs most. For decisions under risk, trust these "
     "more."),
)  # fmt: skip

_CLASSIFICATION = (
    ("Reliability",
     "Of all the rows where a method is 80 % sure, four in five should be right. On the dashed "
     "line they are. Below it the method is overconfident."),
    ("Which number matters?",
     "Accuracy looks at the most probable class only. The negative log-likelihood (NLL) and the "
     "Brier score judge the probabilities: being confident and wrong costs most."),
)  # fmt: skip


def guide(comparison: Comparison) -> str:
    """Questions a reader has, then every metric of the table in one sentence."""
    questions = _REGRESSION if comparison.task == "regression" else _CLASSIFICATION
    blocks = "".join(f"<div><h3>{q}</h3><p>{a}</p></div>" for q, a in (*questions, *_COMMON))
    metrics = "".join(
        f"<div><dt>{escape(m.label)}</dt><dd>{escape(m.explanation)}"
        f"{' ' + escape(m.hint.capitalize()) + '.' if m.hint else ''}</dd></div>"
        for m in columns(comparison)
        if m.explanation
    )
    return (
        f'<div class="guide">{blocks}</div><h3>The metrics</h3><dl class="metrics">{metrics}</dl>'
    )
