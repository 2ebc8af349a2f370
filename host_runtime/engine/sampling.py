"""From logits to tokens: greedy, sampled, and exact verification of a draft.

Speculative sampling (arXiv 2211.17192) with the greedy draft as a point mass: the draft d is
accepted with probability p(d); otherwise the token is drawn from p without d, renormalised. The
token's distribution is then exactly p: MTP changes the speed of an answer, not what it may say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from host_runtime.engine.request import SamplingParams
from host_runtime.errors import NumericsError


@dataclass(frozen=True)
class Choice:
    """A chosen token and its natural log probability before temperature and filters."""

    token: int
    logprob: float
    accepted_draft: bool = False


class Sampler:
    """Picks the tokens of one request; its random numbers depend on nothing but the seed."""

    def __init__(self, params: SamplingParams) -> None:
        self.params = params
        self._generator = torch.Generator()
        if params.seed is None:
            self._generator.seed()
        else:
            self._generator.manual_seed(params.seed)

    def choose(self, logits: torch.Tensor) -> Choice:
        """A token from logits [V]. Raises NumericsError if they are not finite."""
        check_finite(logits, "logits")
        if self.params.temperature == 0:
            return _choice(logits, int(logits.argmax()))
        return _choice(logits, self._draw(probabilities(logits, self.params)))

    def verify(self, logits: torch.Tensor, draft: int) -> Choice:
        """The token at the draft's place: the draft itself if accepted, else another one."""
        check_finite(logits, "logits")
        if self.params.temperature == 0:
            token = int(logits.argmax())
            return _choice(logits, token, accepted_draft=token == draft)
        chances = probabilities(logits, self.params)  # [V]
        if self._uniform() < float(chances[draft]):
            return _choice(logits, draft, accepted_draft=True)
        chances[draft] = 0.0
        return _choice(logits, self._draw(chances))

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._generator, dtype=torch.float64))

    def _draw(self, chances: torch.Tensor) -> int:
        """An index by inverse distribution function; `chances` [V] need not sum to one."""
        cumulative = chances.cumsum(0)  # [V]
        target = self._uniform() * float(cumulative[-1])
        index = int(torch.searchsorted(cumulative, target, right=True))
        if index >= chances.numel():  # rounding put the target on the very end
            index = int(chances.nonzero()[-1])
        return index


def probabilities(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """float64 [V] on the CPU: softmax(logits / temperature) after top-k, then top-p.

    Top-p keeps the smallest set of most likely tokens that reaches top_p. Equal probabilities: the
    lower id comes first.
    """
    scaled = logits.to("cpu", torch.float64)  # [V]
    scaled = (scaled - scaled.max()) / params.temperature
    if params.top_k == 0 and params.top_p == 1:
        return scaled.softmax(0)
    ordered, ids = scaled.sort(dim=0, descending=True, stable=True)  # [V] each
    if params.top_k:
        ordered[params.top_k :] = -torch.inf
    chances = ordered.softmax(0)
    before = chances.cumsum(0) - chances  # [V]: probability of all that come first
    chances[before >= params.top_p] = 0.0
    return torch.zeros_like(chances).scatter_(0, ids, chances / chances.sum())


def check_finite(logits: torch.Tensor, what: str) -> None:
    """Raise NumericsError if `logits` has NaN or infinity."""
    if not bool(torch.isfinite(logits).all()):
        raise NumericsError(
            f"the model's {what} are not finite (NaN or infinity)",
            "check the weights (duckctl cache verify) and the ducks' memory",
        )


def _choice(logits: torch.Tensor, token: int, *, accepted_draft: bool = False) -> Choice:
    logprob = float(logits[token] - logits.logsumexp(0))
    return Choice(token, logprob, accepted_draft)
