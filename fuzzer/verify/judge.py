"""The judge: is a difference more than the model's own rounding, and which side is wrong?

Pure functions over what the oracle measured on the same input: the float64 answer y, the module's plain answer p, and K
answers under random rounding. The noise floor of an element is φ = max over the K runs of |pₖ − p|, but at least the
median over its leaf, so that a lucky element cannot make a false alarm. A side's drift is d = |x − y| / (φ + ulp(y)).

A difference stands where the two sides are more than T floors apart and one of them is more than T floors from y. A
decision (an index, a kept box, a flipped bit) that some run at an amplitude of T places takes otherwise is a near-tie:
it stands, but neither side is to blame.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fuzzer.trees import Leaf, Leaves
from fuzzer.verify.compare import Comparison
from fuzzer.verify.flips import JUMPING_SHARE, integers_flip, jumps, rows_move, takes_an_alternative
from fuzzer.verify.noise import OracleAnswer, draws_of, growth, is_float, noise_floor, real, row_noise, unmeasured
from fuzzer.verify.ulp import FORMATS, ulp
from fuzzer.verify.verdict import Blame, Difference, Kind

__all__ = ["THRESHOLD", "Judgement", "OracleAnswer", "judge", "noise_floor"]

#: Noise floors: other orders, layouts and kernels stay below 2; TF32, float16 and swapped logits are tens to thousands
#: (`benchmarks/floor.py`).
THRESHOLD = 5.0
#: Movement that grows less than this when the amplitude grows fivefold is a decision that flips, not noise.
_DECISION_GROWTH = 2.0
#: These have no comparison with signed integers of their own; as int64 they keep telling equal from unequal.
_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
#: Gaps below this many ulp of the leaf's largest value are never looked at as decisions.
_DECISION_ULP = 1000.0
#: Answers this many ulp of the leaf's largest value apart are the same alternative of a decision.
_ALTERNATIVE_ULP = 1000.0
#: Share of its size within which a finite answer counts as right where the other side has none.
_ROUGHLY = 0.01
#: The study's loosest tolerance: what meets it is not reported where no noise is known.
_LOOSEST = "1e-3"


@dataclass
class Judgement:
    """The differences that stand, those that were rounding, and the noise floor of each float leaf (float64)."""

    standing: list[Difference]
    rounding: list[Difference]
    floors: dict[str, Tensor]
    notes: list[str]


def judge(
    reference: Leaves,
    target: Leaves,
    comparison: Comparison,
    oracle: OracleAnswer,
    decide: Callable[[], OracleAnswer | None],
    *,
    threshold: float = THRESHOLD,
    own_tolerance: bool = False,
) -> Judgement:
    """Judge each difference of `comparison`.

    `decide` gives the oracle's answer at an amplitude of `threshold` places with zeros moved as well; it is asked at
    most once, and only where a decision is in question. With `own_tolerance` (the seed has one) what is within the
    noise still stands, with nobody to blame.
    """
    asked: list[OracleAnswer | None] = []

    def decisions() -> OracleAnswer | None:
        if not asked:
            asked.append(decide())
        return asked[0]

    found = Judgement([], [], {}, [])
    if oracle.truth is None:
        found.notes.append(f"no float64 answer: {oracle.no_truth or 'the oracle gave none'}")
    case = _Case(reference, target, oracle, decisions, threshold, own_tolerance)
    for path, leaf in reference.items():
        if is_float(leaf):
            floor = noise_floor(path, oracle)
            if floor is not None:
                found.floors[path] = floor
            if unmeasured(path, oracle):
                found.notes.append(f"no run under random rounding is finite at {path}: its noise is not known")
    for difference in comparison.differences:
        judged = case.judge(difference, comparison, found)
        (found.rounding if judged is None else found.standing).append(judged or difference)
    return found


@dataclass(frozen=True)
class _Case:
    reference: Leaves
    target: Leaves
    oracle: OracleAnswer
    decisions: Callable[[], OracleAnswer | None]
    threshold: float
    own_tolerance: bool

    def judge(self, difference: Difference, comparison: Comparison, found: Judgement) -> Difference | None:
        """The difference with what is now known of it; None where it is rounding."""
        path = difference.path
        if difference.kind is Kind.VALUE and unmeasured(path, self.oracle):
            near = any(stats.path == path and stats.norm_ok.get(_LOOSEST) for stats in comparison.stats)
            return None if near and not self.own_tolerance else replace(difference, blame=Blame.UNKNOWN)
        if difference.kind is Kind.VALUE and path in comparison.masks and path in found.floors:
            return self._values(difference, comparison.masks[path], found.floors[path])
        if difference.kind is Kind.NONFINITE and path in comparison.nonfinite:
            return self._nonfinite(difference, comparison.nonfinite[path])
        if difference.kind is Kind.INTEGER:
            return self._integers(difference)
        if difference.kind is Kind.SIGNED_ZERO:
            return replace(difference, blame=self._blame_for_signs(path))
        if difference.kind in (Kind.SHAPE, Kind.ARITY):
            return self._structure(difference)
        return replace(difference, blame=self._blame_by_equality(path))

    def _values(self, difference: Difference, mask: Tensor, floor: Tensor) -> Difference | None:
        path = difference.path
        r, t, y = (real(side, path) for side in (self.reference, self.target, self.oracle.truth))
        if r is None or t is None or not r.shape == t.shape == floor.shape:  # a complex leaf against a real one
            return replace(difference, blame=Blame.UNKNOWN)
        dtype = _dtype(self.reference[path])
        unit = floor + ulp(r if y is None or y.shape != r.shape else y.nan_to_num(0, 0, 0), dtype)
        gap = (t - r).abs() / unit
        if y is None or y.shape != r.shape:
            d_r = d_t = torch.full_like(r, float("nan"))
            over = mask & (gap > self.threshold)
        else:
            d_r, d_t = ((side - y).abs().nan_to_num(float("inf")) / unit for side in (r, t))
            over = mask & (gap > self.threshold) & (torch.maximum(d_r, d_t) > self.threshold)
        if bool(over.any()):
            return self._wrong_values(difference, over, gap, d_r, d_t, floor)
        if self._coarser_grid(path, r, t, mask):
            return self._described(difference, mask, gap, d_r, d_t, Blame.TARGET, "leave the grid of a narrower dtype")
        if self._is_decision(path, mask, floor, (t - r).abs(), dtype):
            return self._described(difference, mask, gap, d_r, d_t, Blame.NEITHER, "hang on a near-tie", tie=True)
        if self.own_tolerance:
            what = "are over the tolerance but within the noise"
            return self._described(difference, mask, gap, d_r, d_t, Blame.NEITHER, what)
        return None

    def _wrong_values(
        self, difference: Difference, over: Tensor, gap: Tensor, d_r: Tensor, d_t: Tensor, floor: Tensor
    ) -> Difference:
        path = difference.path
        if self._hangs_on_a_decision(path, over, floor):
            return self._described(difference, over, gap, d_r, d_t, Blame.NEITHER, "hang on a near-tie", tie=True)
        if bool(torch.isnan(d_t).all()):
            blame = Blame.UNKNOWN
        else:
            blame = _blame(bool((d_t[over] > self.threshold).any()), bool((d_r[over] > self.threshold).any()))
        return self._described(difference, over, gap, d_r, d_t, blame, "are beyond the noise")

    def _hangs_on_a_decision(self, path: str, over: Tensor, floor: Tensor) -> bool:
        """Whether half of what is beyond the noise jumps in some run, or rows change places.

        Half, because one decision (which key wins) moves many elements, and 24 runs need not reach each of them.
        """
        wide = self.decisions()
        flips = None if wide is None else noise_floor(path, wide)
        if wide is None or flips is None or flips.shape != floor.shape:
            return False
        r, t = (real(side, path) for side in (self.reference, self.target))
        assert r is not None
        assert t is not None
        jumped = ((flips > 4 * self.threshold * floor) & ((t - r).abs() <= 2 * flips))[over]
        if not bool(jumped.all()):
            jumped |= jumps(t[over], [run[over] for run in draws_of(path, wide)], floor[over], self.threshold)
        share = float(jumped.to(torch.float64).mean())
        return share >= JUMPING_SHARE or self._rows_move(path, over, wide)

    def _described(
        self,
        difference: Difference,
        mask: Tensor,
        gap: Tensor,
        d_r: Tensor,
        d_t: Tensor,
        blame: Blame,
        what: str,
        *,
        tie: bool = False,
    ) -> Difference:
        at = _worst(mask, gap)
        path = difference.path
        r, t, y = (real(side, path) for side in (self.reference, self.target, self.oracle.truth))
        assert r is not None
        assert t is not None
        known = y is not None and y.shape == r.shape
        return replace(
            difference,
            message=f"{int(mask.sum())} of {mask.numel()} elements {what}; the worst {float(gap[at]):.3g} floors apart",
            mismatched=int(mask.sum()),
            index=at,
            reference=repr(float(r[at])),
            target=repr(float(t[at])),
            truth=repr(float(y[at])) if known and y is not None else "",
            drift_reference=float(d_r[at]) if known else None,
            drift_target=float(d_t[at]) if known else None,
            near_tie=tie,
            blame=blame,
        )

    def _is_decision(self, path: str, mask: Tensor, floor: Tensor, gap: Tensor, dtype: torch.dtype) -> bool:
        """Whether movement that looks like noise is a decision that flips: it does not grow with the amplitude."""
        r = real(self.reference, path)
        assert r is not None
        finite = r[torch.isfinite(r)].abs()
        scale = finite.max() if finite.numel() else torch.zeros((), dtype=torch.float64)
        large = mask & (gap > _DECISION_ULP * ulp(scale, dtype))
        if not bool(large.any()):
            return False
        wide = self.decisions()
        if wide is None:
            return True
        grown = growth(path, self.oracle, wide)
        if grown is None or grown.shape != floor.shape:
            return True  # the shape itself changes when rounding does
        if float(grown[large].median()) >= _DECISION_GROWTH:
            return False
        return self._takes_an_alternative(path, wide, large, _ALTERNATIVE_ULP * ulp(scale, dtype))

    def _takes_an_alternative(self, path: str, wide: OracleAnswer, large: Tensor, near: Tensor) -> bool:
        t, p = (real(side, path) for side in (self.target, self.oracle.plain))
        assert t is not None
        assert p is not None
        return takes_an_alternative(t, [p, *draws_of(path, self.oracle)], draws_of(path, wide), large, near)

    def _rows_move(self, path: str, over: Tensor, wide: OracleAnswer) -> bool:
        t, p = (real(side, path) for side in (self.target, self.oracle.plain))
        noise = row_noise(path, self.oracle)
        if t is None or p is None or noise is None or t.shape != p.shape:
            return False
        finite = p[torch.isfinite(p)].abs()
        least = _ALTERNATIVE_ULP * torch.finfo(torch.float32).eps * float(finite.max()) if finite.numel() else 0.0
        near = self.threshold * noise + least
        runs = [real(run, path) for run in (*self.oracle.draws, *wide.draws)]
        return rows_move(t, p, [run for run in runs if run is not None], over, near)

    def _coarser_grid(self, path: str, r: Tensor, t: Tensor, mask: Tensor) -> bool:
        """Whether the reference and all perturbed runs answer on the grid of a 16-bit dtype and the target does not.

        A float16 chain inside a float32 model moves by whole float16 steps, so that a target which skips the rounding
        stays within that noise; but it leaves the grid, which rounding never does. Where no 16-bit float was seen the
        grid is that of a float32 cancellation.
        """
        if _dtype(self.reference[path]) != torch.float32 or not self.oracle.narrow:
            return False
        for narrow in (torch.float16, torch.bfloat16):
            sides = [r, *draws_of(path, self.oracle)]
            if all(_on_grid(side, narrow) for side in sides) and not _on_grid(t[mask], narrow):
                return int((~_each_on_grid(t[mask], narrow)).sum()) >= 4 or t.numel() < 4
        return False

    def _nonfinite(self, difference: Difference, odd: Tensor) -> Difference:
        path = difference.path
        r, t, y = (real(side, path) for side in (self.reference, self.target, self.oracle.truth))
        if r is None or t is None or r.shape != t.shape:
            return replace(difference, blame=Blame.UNKNOWN)
        dtype = _dtype(self.reference[path])
        runs = draws_of(path, self.oracle)
        if not self.oracle.formulas and (plain := real(self.oracle.plain, path)) is not None:
            runs.append(plain)
        reached = [_same_class(run, t)[odd] for run in runs]
        # Some runs, and not all: what every run does may be the doing of formulas in place of kernels. Without any the
        # plain answer is one run more.
        wavers = [torch.stack(reached).any(0) & ~torch.stack(reached).all(0)] if reached else []
        edge = any(bool(each.all()) for each in wavers) or self._odd_rows_move(path, odd)
        if y is None or y.shape != r.shape:
            return replace(difference, near_tie=edge, blame=Blame.NEITHER if edge else Blame.UNKNOWN)
        narrow = y.to(dtype).to(torch.float64)  # what float64 answers, in the range of the leaf's dtype
        right_r, right_t = (bool(self._right(side, narrow)[odd].all()) for side in (r, t))
        blame = Blame.NEITHER if edge else _blame(not right_t, not right_r)
        at = difference.index or ()
        return replace(difference, truth=repr(float(narrow[at])), near_tie=edge, blame=blame)

    def _odd_rows_move(self, path: str, odd: Tensor) -> bool:
        """Whether rows with NaN or infinities, such as boxes, only stand at other places, as in some run."""
        wide = self.decisions() if odd.dim() == 2 else None
        return wide is not None and self._rows_move(path, odd, wide)

    @staticmethod
    def _right(side: Tensor, y: Tensor) -> Tensor:
        """Where a side is as float64 says; a finite answer next to a NaN must also have the right value, roughly.

        Roughly, because there is no noise floor where the plain answer is not finite.
        """
        finite = y[torch.isfinite(y)].abs()
        usual = float(finite.median()) if finite.numel() else 0.0  # a huge element must not make the others right
        far = torch.isfinite(side) & torch.isfinite(y) & ((side - y).abs() > _ROUGHLY * y.abs().clamp(min=usual))
        return _same_class(side, y) & ~far

    def _integers(self, difference: Difference) -> Difference:
        path = difference.path
        r, t = _whole(self.reference.get(path)), _whole(self.target.get(path))
        if r is None or t is None or r.shape != t.shape:
            return replace(difference, blame=self._blame_by_equality(path))
        unequal = r != t
        wide = self.decisions()
        runs = [] if wide is None else [_whole(run.get(path)) for run in (*self.oracle.draws, *wide.draws)]
        tie = wide is not None and integers_flip(t, _whole(wide.plain.get(path)), runs, unequal)
        truth = None if self.oracle.truth is None else _whole(self.oracle.truth.get(path))
        if truth is None or truth.shape != r.shape:
            return replace(difference, near_tie=tie, blame=Blame.NEITHER if tie else Blame.UNKNOWN)
        wrong_r, wrong_t = (bool((side != truth)[unequal].any()) for side in (r, t))
        blame = Blame.NEITHER if tie else _blame(wrong_t, wrong_r)
        return replace(difference, truth=str(truth[difference.index or ()].item()), near_tie=tie, blame=blame)

    def _structure(self, difference: Difference) -> Difference:
        """A shape or a set of leaves: a near-tie where rounding reaches the target's, else judged by float64's."""
        path = difference.path
        wide = self.decisions()
        runs = [] if wide is None else [wide.plain, *self.oracle.draws, *wide.draws]
        seen = [_shape(side.get(path)) for side in runs]
        if len(set(seen)) > 1 and _within(_shape(self.target.get(path)), seen):
            return replace(difference, near_tie=True, blame=Blame.NEITHER)
        if self.oracle.truth is None:
            return replace(difference, blame=Blame.UNKNOWN)
        y, r, t = (_shape(side.get(path)) for side in (self.oracle.truth, self.reference, self.target))
        return replace(difference, blame=_blame(t != y, r != y))

    def _blame_for_signs(self, path: str) -> Blame:
        """The side whose zeros have another sign than float64's; unknown where float64 has no zeros there."""
        r, t, y = (real(side, path) for side in (self.reference, self.target, self.oracle.truth))
        if r is None or t is None or y is None or not r.shape == t.shape == y.shape:
            return Blame.UNKNOWN
        known = (r == 0) & (t == 0) & (y == 0)
        wrong = [bool((known & (torch.signbit(side) != torch.signbit(y))).any()) for side in (t, r)]
        return _blame(*wrong)

    def _blame_by_equality(self, path: str) -> Blame:
        """For what has no noise (dtypes, plain values): the side that is as the module itself says."""
        plain = self.oracle.plain
        as_plain = [_kind_of(side.get(path)) == _kind_of(plain.get(path)) for side in (self.reference, self.target)]
        return _blame(not as_plain[1], not as_plain[0])


def _blame(target_wrong: bool, reference_wrong: bool) -> Blame:
    if target_wrong and reference_wrong:
        return Blame.BOTH
    if target_wrong:
        return Blame.TARGET
    return Blame.REFERENCE if reference_wrong else Blame.UNKNOWN


def _whole(leaf: Leaf) -> Tensor | None:
    """A tensor on the CPU, or a Python integer or bool as one; None for anything else."""
    if isinstance(leaf, Tensor):
        value = leaf.detach().to("cpu")
        return value.to(torch.int64) if value.dtype in _UNSIGNED else value
    if isinstance(leaf, int) and -(2**63) <= leaf < 2**63:
        return torch.tensor(leaf)
    return None


def _within(shape: object, seen: list[object]) -> bool:
    """Whether a shape lies between those seen, size by size. Anything that is no shape has to have been seen itself."""
    if shape in seen:
        return True
    alike = [s for s in seen if isinstance(s, tuple) and isinstance(shape, tuple) and len(s) == len(shape)]
    if not alike or not isinstance(shape, tuple):
        return False
    return all(min(sizes) <= size <= max(sizes) for size, sizes in zip(shape, zip(*alike, strict=True), strict=True))


def _same_class(a: Tensor, b: Tensor) -> Tensor:
    """Where both are NaN, both the same infinity, or both finite."""
    if a.shape != b.shape:
        return torch.zeros_like(b, dtype=torch.bool)
    both_finite = torch.isfinite(a) & torch.isfinite(b)
    return both_finite | (torch.isnan(a) & torch.isnan(b)) | (a == b)


def _each_on_grid(values: Tensor, narrow: torch.dtype) -> Tensor:
    return (values.to(narrow).to(torch.float64) == values) | torch.isnan(values)


def _on_grid(values: Tensor, narrow: torch.dtype) -> bool:
    return bool(_each_on_grid(values, narrow).all())


def _dtype(leaf: Leaf) -> torch.dtype:
    if not isinstance(leaf, Tensor):
        return torch.float64
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64, torch.complex32: torch.float16}
    dtype = real.get(leaf.dtype, leaf.dtype)
    return dtype if dtype in FORMATS else torch.float64


def _worst(mask: Tensor, gap: Tensor) -> tuple[int, ...]:
    flat = int(torch.where(mask, gap.nan_to_num(float("inf"), float("inf")), -1.0).argmax())
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), mask.shape)) if mask.dim() else ()


def _shape(leaf: Leaf) -> object:
    return tuple(leaf.shape) if isinstance(leaf, Tensor) else type(leaf)


def _kind_of(leaf: Leaf) -> object:
    return (leaf.dtype, tuple(leaf.shape)) if isinstance(leaf, Tensor) else leaf
