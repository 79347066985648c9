"""The report of a drill: one HTML file."""

from actonce.evidence.judge import Judgement


def render(judgement: Judgement) -> str:
    return judgement.verdict.sentence
