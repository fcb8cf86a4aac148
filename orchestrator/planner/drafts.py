"""How many tokens to draft: a wish, what is known of the combination, or a prior; never more than the drafter was
trained for and than is safe. Pure."""

from __future__ import annotations

from orchestrator.models import Ngram
from orchestrator.plan import Method, Reason
from orchestrator.planner import priors
from orchestrator.planner.candidates import Candidate
from orchestrator.planner.scoring import seen
from orchestrator.planner.terms import Terms
from orchestrator.planner.wishes import Preferences


def wanted(candidate: Candidate, wish: Preferences) -> int:
    """The draft length before anything limits it; 0 for a method that drafts nothing."""
    method = candidate.method
    if method is Method.NONE:
        return 0
    if method is Method.NGRAM:
        return wish.draft_tokens or (wish.ngram or Ngram()).longest
    known = None if candidate.known is None else candidate.known.draft_tokens
    prior = priors.draft(seen(candidate), wish.parallel or 1)
    return wish.draft_tokens or known or (1 if prior is None else prior.tokens)


def trained(candidate: Candidate, wish: Preferences, length: int) -> tuple[int, tuple[Reason, ...]]:
    """The length that the drafter was trained for, where that is less; and that it cut off a wish."""
    limit = candidate.longest_draft
    if candidate.method in (Method.NONE, Method.NGRAM) or limit is None or length <= limit:
        return length, ()
    if wish.draft_tokens is None:
        return limit, ()
    text = f"{length} draft tokens are asked for, the drafter was trained for {limit}: {limit} are drafted"
    return limit, (Reason("draft_clamped", text, "llama.cpp clamps it too"),)


def safe(length: int, terms: Terms) -> tuple[int, tuple[Reason, ...]]:
    """The length that is known to be safe, where that is less, and who says so."""
    limit = terms.most("draft_tokens")
    if limit is None or length <= limit[0]:
        return length, ()
    most, restriction = limit
    text = f"{length} draft tokens would be drafted, {most} are: {restriction.text}"
    return most, (Reason("draft_clamped", text, restriction.source),)
