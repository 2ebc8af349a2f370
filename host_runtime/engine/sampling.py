"""From logits to tokens: greedy, sampled, and exact verification of a draft.

Every token is drawn from its own distribution p with one random number, whether a draft was made or
not; a draft is accepted when it is the token that was drawn. With the greedy draft d as a point
mass this is speculative sampling (arXiv 2211.17192): d is accepted with probability p(d), and a
token that replaces it has the distribution p without d, renormalised. So MTP changes the speed of
an answer and nothing else: with the same seed the tokens are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Picks the tokens of one request: one random number of the seed for each sampled token."""

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
        """The token at the draft's place, and whether the draft is accepted."""
        choice = self.choose(logits)
        return replace(choice, accepted_draft=choice.token == draft)

    def _draw(self, chances: torch.Tensor) -> int:
        """An index by inverse distribution function; `chances` [V] need not sum to one."""
        cumulative = chances.cumsum(0)  # [V]
        uniform = float(torch.rand((), generator=self._generator, dtype=torch.float64))
        target = uniform * float(cumulative[-1])
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


def _choice(logits: torch.Tensor, token: int) -> Choice:
    return Choice(token, float(logits[token] - logits.logsumexp(0)))
