"""The proposer: its queries, when it fits, and that interrupted runs continue unchanged."""

import copy
import pickle
from dataclasses import fields
from typing import Any

import pytest
import torch
from botorch.acquisition import AcquisitionFunction, ProbabilityOfImprovement, UpperConfidenceBound
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InfeasibilityError,
    InputDataError,
    UnsupportedError,
)
from botorch.exceptions.warnings import InputDataWarning
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.optim import optimize_acqf
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.kernels import RQKernel
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.acquisition import DelayedThompsonSampling, DelayedUpperConfidenceBound
from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings, refits
from botorch_calib.asynchronous import proposer as proposer_module
from botorch_calib.asynchronous.refits import fit_single_task_gp
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CensoredDelayModel
from tests.asynchronous.runs import BOUNDS, CENSOR, fit
from tests.gps import DOUBLE
from tests.long_grids import mostly_slow
from tests.random_numbers import uniform

GRID = torch.cartesian_prod(
    torch.linspace(-1.0, 1.0, 12, **DOUBLE), torch.linspace(0.0, 5.0, 12, **DOUBLE)
)


def objective(x: Tensor) -> float:
    """At most 0, at (0.3, 2)."""
    return -float((x[0] - 0.3) ** 2 + 0.04 * (x[1] - 2.0) ** 2)


def make_proposer(bounds: Tensor = BOUNDS, **kwargs: Any) -> DelayAwareProposer:
    """A proposer; ``kwargs`` also has arguments of its strategy and its search."""
    kwargs = {"fit": fit, "num_restarts": 2, "raw_samples": 32, **kwargs}
    for name, kind in (("strategy", DelayStrategy), ("search", SearchSettings)):
        if name not in kwargs:
            names = [field.name for field in fields(kind) if field.name in kwargs]
            kwargs[name] = kind(**{each: kwargs.pop(each) for each in names})
    return DelayAwareProposer(bounds, **kwargs)


def make_ledger(num: int = 9, delay: int = 3, **kwargs: Any) -> FeedbackLedger:
    """Sobol queries whose values arrive ``delay`` queries later, so that ``delay`` are pending."""
    ledger = FeedbackLedger(2, **{"censor_value": CENSOR, **kwargs})
    for x in draw_sobol_samples(BOUNDS, n=num, q=1, seed=7).squeeze(-2):
        step(ledger, x, delay)
    return ledger


def step(ledger: FeedbackLedger, x: Tensor, delay: int = 3, sign: float = 1.0) -> None:
    """Submit a query, and let the value of an earlier one arrive."""
    trial_id = ledger.submit(x)
    if trial_id >= delay:
        ledger.observe(trial_id - delay, sign * objective(ledger[trial_id - delay].x))


class Spy:
    """Records the acquisition functions that a proposer maximises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[Any] = []
        for name in ("optimize_in_unit_box", "optimize_acqf_discrete"):
            monkeypatch.setattr(proposer_module, name, self.wrap(getattr(proposer_module, name)))

    def wrap(self, search: Any) -> Any:
        def searched(acqf: AcquisitionFunction, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(acqf)
            return search(acqf, *args, **kwargs)

        return searched


# ------------------------------------------------------------------ the initial design


def test_the_design_is_a_sobol_sequence():
    """One point for each trial, whether or not it has a value; a new proposer continues it."""
    ledger, points = FeedbackLedger(2), []
    for count in range(5):
        points.append(make_proposer()(ledger))
        assert torch.equal(points[-1], make_proposer()(ledger))
        trial_id = ledger.submit(points[-1])
        if count == 1:
            ledger.fail(trial_id)
        elif count == 2:
            ledger.observe(trial_id, 0.1)
    design = torch.stack(points)
    assert design.dtype == torch.double and design.shape == (5, 2)
    assert (design >= BOUNDS[0]).all() and (design <= BOUNDS[1]).all()
    seed = proposer_module.derived_seed(0, proposer_module.DESIGN)
    assert_close(design, draw_sobol_samples(BOUNDS, n=5, q=1, seed=seed).squeeze(-2))
    # The number of the design is over, but a second value has not come.
    sixth = make_proposer()(ledger)
    assert_close(sixth, draw_sobol_samples(BOUNDS, n=6, q=1, seed=seed)[5, 0])
    ledger.observe(3, 0.2)
    sixth = make_proposer()(ledger)  # now there is a model
    assert not torch.equal(sixth, draw_sobol_samples(BOUNDS, n=6, q=1, seed=seed)[5, 0])
    assert not torch.equal(make_proposer(seed=1)(FeedbackLedger(2)), design[0])


# ------------------------------------------------------------------ acquisition functions


@pytest.mark.parametrize(
    ("acquisition", "imputation", "window"),
    [
        ("ucb", "censor", "pending"),
        ("ucb", "none", None),
        ("ts", "censor", "all"),
        ("ts", "hallucinate", "pending"),
    ],
)
def test_the_function_that_is_maximised(acquisition, imputation, window, monkeypatch):
    spy = Spy(monkeypatch)
    ledger = make_ledger(max_wait=5)
    arguments = {"beta": 0.64, "feedback_bound": 0.3}
    propose = make_proposer(
        acquisition=acquisition,
        imputation=imputation,
        window=window,
        num_restarts=8,
        raw_samples=128,
        **arguments,
    )
    candidate = propose(ledger)
    model = CensoredDelayModel.from_ledger(ledger, fit, imputation)
    build = {"ucb": DelayedUpperConfidenceBound, "ts": DelayedThompsonSampling}[acquisition]
    if acquisition == "ts":
        arguments["seed"] = proposer_module.derived_seed(0, proposer_module.DRAW, 9)
    expected = build.from_ledger(model, ledger, window, **arguments)
    (acqf,) = spy.seen
    assert_close(acqf.nu, expected.nu)
    assert (window is None) == (acqf.nu.item() == 0.8)
    values = expected(GRID.unsqueeze(-2))
    assert_close(acqf(GRID.unsqueeze(-2)), values, rtol=1e-6, atol=1e-8)
    assert candidate.shape == (2,) and not candidate.requires_grad
    assert expected(candidate.unsqueeze(0)) > values.max() - 1e-3


def test_minimisation_mirrors_maximisation():
    found = []
    for sign in (1.0, -1.0):
        ledger = FeedbackLedger(2, censor_value=sign * CENSOR)
        propose = make_proposer(maximize=sign > 0)
        for _ in range(8):
            step(ledger, propose(ledger), delay=2, sign=sign)
        found.append(ledger.queries())
    assert_close(found[0], found[1], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("imputation", "gap"),
    mostly_slow([("censor", 0.05), ("hallucinate", 0.005)], {("hallucinate", 0.005)}),
)
def test_it_finds_the_optimum(imputation, gap):
    """With delays of three queries and the default fit, 20 queries come close to the optimum 0.

    Censoring by a value far below it makes for more exploration, and a wider gap.
    """
    ledger = FeedbackLedger(2, censor_value=CENSOR)
    propose = make_proposer(fit=None, imputation=imputation, feedback_bound=0.1)
    for _ in range(20):
        step(ledger, propose(ledger))
    best = ledger.best()
    assert best is not None and best.y is not None and best.y > -gap
    design = [trial.y for trial in ledger.trials[:5] if trial.y is not None]
    assert best.y > 0.5 * max(design)


def test_queries_on_a_plateau_are_spread() -> None:
    """All values are equal; a value that differs makes the model choose again."""
    ledger, propose = FeedbackLedger(2), make_proposer(fit=None)
    for _ in range(24):
        ledger.tell(ledger.submit(propose(ledger)), 0.1)
    cells = ((ledger.queries() - BOUNDS[0]) / BOUNDS.diff(dim=0) * 3).long()
    assert len(cells.unique(dim=0)) == 9
    spread = propose(ledger)
    ledger.amend(0, 0.2)
    assert not torch.equal(propose(ledger), spread)


# ------------------------------------------------------------------ fitting and resuming


class StochasticFit:
    """A fit that draws random numbers, as restarts of fits do."""

    def __call__(self, X: Tensor, Y: Tensor) -> SingleTaskGP:
        gp = fit(X, Y)
        gp.covar_module.lengthscale = 0.3 + 0.3 * torch.rand(())
        return gp


ARGUMENTS: dict[str, dict[str, Any]] = {
    "random fit": {"fit": StochasticFit(), "window": "all"},
    "choices": {"acquisition": "ts", "choices": GRID},
    "default fit with warm starts": {"fit": None, "acquisition": "ts", "refit_every": 1.3},
    "spread": {"imputation": "hallucinate", "window": None, "spread_beyond": 1},
}


def test_the_design_repeats_no_choice_after_failures_or_earlier_data():
    for seed in range(4):
        ledger = FeedbackLedger(2)
        ledger.add(GRID[:1], [0.0])
        propose = make_proposer(choices=GRID[:12], num_initial=12, seed=seed)
        for count in range(1, 12):
            trial_id = ledger.submit(propose(ledger))
            ledger.fail(trial_id) if count % 4 == 1 else ledger.tell(trial_id, count)
        assert len(ledger.queries().unique(dim=0)) == 12


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_resumed_run_goes_on_as_it_would_have(name, tmp_path, monkeypatch):
    """A new proposer on the reopened file proposes the same queries as without interruption."""
    monkeypatch.setattr(refits, "LEAST_FOR_WARM_START", 4)
    path = tmp_path / "run.ledger"
    ledger = FeedbackLedger.open(path, dim=2, censor_value=CENSOR, max_wait=4)
    propose = make_proposer(**ARGUMENTS[name])
    torch.manual_seed(0)
    for count in range(10):
        point = propose(ledger)
        if count in (4, 6, 9):  # the last of the design; one before, and one after a failure
            torch.manual_seed(count)
            state = torch.get_rng_state()
            resumed = make_proposer(**ARGUMENTS[name])(FeedbackLedger.open(path))
            assert torch.equal(resumed, point), count
            assert torch.equal(torch.get_rng_state(), state)
        trial_id = ledger.submit(point)
        if trial_id == 6:
            ledger.fail(trial_id)
        elif trial_id in (3, 4, 5, 7, 8):
            ledger.observe(trial_id - 3, objective(ledger[trial_id - 3].x))


def test_the_seed_matters_and_copies_agree():
    ledger = make_ledger()
    propose = make_proposer(acquisition="ts", fit=StochasticFit())
    point = propose(ledger)
    assert not torch.equal(make_proposer(acquisition="ts", seed=1)(ledger), point)
    assert propose._ledger_model._first.model is not None
    for twin in (copy.deepcopy(propose), pickle.loads(pickle.dumps(propose))):
        assert twin._ledger_model._first.model is None  # no stale fit travels
        assert torch.equal(twin(ledger), point)


# ------------------------------------------------------------------ contexts


@pytest.mark.parametrize("key", [1, -1])
def test_fixed_features(key):
    empty, ledger = FeedbackLedger(2), make_ledger()
    for context in (0.5, 4.0, 7.0):  # the last context is outside of the box
        propose = make_proposer(fixed_features={key: context})
        for each in (empty, ledger):
            point = propose(each)
            assert point[1] == context and -1.0 <= point[0] <= 1.0

    def current(ledger: FeedbackLedger) -> dict[int, float]:
        return {key: 0.1 * len(ledger)}

    propose = make_proposer(fixed_features=current)
    assert propose(ledger)[1] == 0.1 * 9
    both = make_proposer(fixed_features={0: 0.25, 1: 3.0})(ledger)
    assert both.tolist() == [0.25, 3.0]


@pytest.mark.parametrize("acquisition", ["ucb", "ts"])
def test_choices_in_a_context(acquisition):
    """Columns of the context are overwritten; equal actions are merged."""
    propose = make_proposer(acquisition=acquisition, choices=GRID, fixed_features={1: 0.77})
    for ledger in (FeedbackLedger(2), make_ledger()):
        point = propose(ledger)
        assert point[1] == 0.77 and (GRID[:, 0] == point[0]).any()
    firsts = FeedbackLedger(2)
    for _ in range(12):
        firsts.submit(propose(firsts))
    assert len({trial.x[0].item() for trial in firsts.trials}) == 12


# ------------------------------------------------------------------ linear constraints

# The optimum, (0.3, 2), breaks it: x_0 + 0.2 x_1 <= 0.3, as coefficients in single precision.
LINE = torch.tensor([0, -1]), torch.tensor([-1.0, -0.2]), -0.3


@pytest.mark.parametrize(
    "settings",
    [
        {"acquisition": "ts"},
        {"spread_beyond": 0},
        {"choices": GRID},
        {"fixed_features": {0: 0.2}},
    ],
)
def test_linear_constraints(settings):
    """Designs, searches and choices meet them, beside a failure."""
    propose = make_proposer(inequality_constraints=[LINE], **settings)
    ledger = FeedbackLedger(2, censor_value=CENSOR)
    ledger.fail(ledger.submit([-0.2, 1.0]))
    for _ in range(10):
        trial_id = ledger.submit(propose(ledger))
        if trial_id > 2:
            ledger.observe(trial_id - 2, objective(ledger[trial_id - 2].x))
    X = ledger.queries()
    assert (X[:, 0] + 0.2 * X[:, 1] <= 0.3 + 1e-6).all()


def test_linear_constraints_mean_what_they_mean_to_botorch():
    seen = []

    def mean(model: CensoredDelayModel, ledger: FeedbackLedger) -> AcquisitionFunction:
        seen.append(UpperConfidenceBound(model, beta=0.0))
        return seen[0]

    found = make_proposer(acquisition=mean, inequality_constraints=[LINE])(make_ledger())
    line = torch.tensor([0, 1]), LINE[1].double(), LINE[2]
    options = {"seed": 0, "n_burnin": 100}
    expected, _ = optimize_acqf(
        seen[0], BOUNDS, 1, 4, 32, inequality_constraints=[line], options=options
    )
    assert_close(found, expected[0], rtol=0, atol=1e-3)
    assert_close((found * torch.tensor([1.0, 0.2])).sum().item(), 0.3)  # at the border


def test_regions_that_are_thin_or_empty():
    """A random walk finds points in thin regions, and each query is different."""
    thin = (torch.tensor([0, 1]), torch.tensor([-1.0, -1.0]), 0.99)  # a corner of 0.01 x 0.01
    ledger = FeedbackLedger(2)
    propose = make_proposer(inequality_constraints=[thin], num_initial=12)
    for _ in range(12):
        ledger.submit(propose(ledger))
    X = ledger.queries()
    assert (X.sum(dim=-1) <= -0.99 + 1e-6).all() and len(X.unique(dim=0)) == 12
    none = (torch.tensor([0, 1]), torch.tensor([1.0, 1.0]), 7.0)
    for choices, error in ((None, InfeasibilityError), (GRID, InputDataError)):
        with pytest.raises(error):
            make_proposer(inequality_constraints=[none], choices=choices)(FeedbackLedger(2))


# ------------------------------------------------------------------ arguments

BAD: dict[str, Any] = {
    "bounds": (
        (BOUNDS.flip(0), InputDataError),
        (BOUNDS[[0, 0]], InputDataError),
        (BOUNDS * torch.inf, InputDataError),
        ([[-1e308], [1e308]], InputDataError),
        (BOUNDS[0], BotorchTensorDimensionError),
        (BOUNDS[:, :0], InputDataError),
        ([["0", "1"]], InputDataError),
    ),
    "strategy": ((["ucb"], InputDataError),),
    "search": ((10, InputDataError),),
    "num_initial": ((-1, InputDataError),),
    "choices": (
        (GRID[:0], InputDataError),
        (GRID * torch.nan, InputDataError),
        (GRID[:, :1], BotorchTensorDimensionError),
        ([[0.0, 1.0], [0.0]], InputDataError),
    ),
    "fit": (("gp", InputDataError),),
    "maximize": ((1, InputDataError),),
    "inequality_constraints": (
        ([LINE[:2]], InputDataError),
        ([([0, 1], [1.0, 1.0], 0.0)], InputDataError),
        ([(torch.tensor([2]), torch.ones(1), 0.0)], InputDataError),
        ([(torch.tensor([0]), torch.ones(2), 0.0)], InputDataError),
        ([(*LINE[:2], "1")], InputDataError),
    ),
    "fixed_features": (
        ({2: 0.0}, InputDataError),
        ({0.5: 0.0}, InputDataError),
        ({0: torch.nan}, InputDataError),
        ({0: torch.zeros(2)}, InputDataError),
        ({0: 0.1, -2: 0.2}, InputDataError),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments_are_named(name):
    for value, error in BAD[name]:
        with pytest.raises(error, match=f"`{name}"):
            DelayAwareProposer(**{"bounds": BOUNDS, name: value})


BAD_SETTINGS: dict[Any, dict[str, list[Any]]] = {
    DelayStrategy: {
        **{"acquisition": ["ei"], "imputation": ["guess"], "window": ["some"], "beta": [-1.0]},
        **{"feedback_bound": [-1.0], "max_censored": [-1], "spread_beyond": [-1]},
        **{"failures": ["retry"]},
    },
    # The last one: fewer samples than restarts.
    SearchSettings: {"num_restarts": [0], "seed": [-1], "raw_samples": [0, 2]},
}


@pytest.mark.parametrize("kind", BAD_SETTINGS)
def test_bad_settings_are_named(kind):
    for name, values in BAD_SETTINGS[kind].items():
        for value in values:
            with pytest.raises(InputDataError, match=f"`{name}`"):
                kind(**{name: value})


def test_bad_ledgers():
    with pytest.raises(BotorchTensorDimensionError, match="`ledger`"):
        make_proposer()(FeedbackLedger(3))
    with pytest.raises(InputDataError, match="`ledger` must be a FeedbackLedger, got str"):
        make_proposer()("run.ledger")
    propose = make_proposer(fixed_features=lambda ledger: {0: float("nan")})
    with pytest.raises(InputDataError, match="`fixed_features"):
        propose(FeedbackLedger(2))
    unknown = make_ledger(censor_value=None)
    for imputation in ("hallucinate", "none"):  # which need no value to censor by
        assert make_proposer(imputation=imputation)(unknown).shape == (2,)


@pytest.mark.parametrize("maximize", [True, False])
def test_without_a_known_bound_values_are_censored_at_the_worst_one_observed(maximize, monkeypatch):
    spy = Spy(monkeypatch)
    ledger = make_ledger(censor_value=None)
    make_proposer(maximize=maximize)(ledger)
    _, Y = ledger.to_observations()
    worst = Y.min() if maximize else Y.max()
    model = spy.seen[0].model
    assert len(model.Y_imputed) == len(ledger.incomplete()) > 0
    assert (model.Y_imputed == worst).all()


def test_the_choice_does_not_depend_on_the_unit_of_the_outcome(monkeypatch):
    spy, scale = Spy(monkeypatch), 1e4
    ledger = FeedbackLedger(2, censor_value=scale * CENSOR)
    for trial in make_ledger().trials:
        trial_id = ledger.submit(trial.x)
        if trial.y is not None:
            ledger.observe(trial_id, scale * trial.y)
    make_proposer()(ledger)
    reference = Spy(monkeypatch)
    make_proposer(feedback_bound=1.0 / make_ledger().to_observations()[1].std().item())(
        make_ledger()
    )
    assert_close(spy.seen[0].nu, reference.seen[0].nu, rtol=1e-4, atol=0.0)
    assert spy.seen[0].nu > 1.0


def own_bound(model: CensoredDelayModel, ledger: FeedbackLedger) -> AcquisitionFunction:
    return UpperConfidenceBound(model, beta=1.0)


def own_probability(model: CensoredDelayModel, ledger: FeedbackLedger) -> AcquisitionFunction:
    return ProbabilityOfImprovement(model, best_f=ledger.to_observations()[1].max())


@pytest.mark.parametrize("strategy", ["ucb", "ts", DelayStrategy(own_probability)])
def test_the_choice_does_not_depend_on_the_units_of_the_queries(strategy):
    """BoTorch's search ends at its starts if the gradient is less than 1e-5."""
    U = uniform(12, 2, generator=torch.Generator().manual_seed(0))
    chosen = []
    for units in ((1.0, 1.0), (1e6, 1e-6)):
        scale = torch.tensor(units, **DOUBLE)
        bounds = torch.stack([torch.zeros_like(scale), scale])

        def fit_in_box(X: Tensor, Y: Tensor, bounds: Tensor = bounds) -> SingleTaskGP:
            gp = SingleTaskGP(
                X, Y, input_transform=Normalize(2, bounds=bounds), outcome_transform=Standardize(1)
            )
            gp.covar_module.lengthscale = 0.3
            gp.likelihood.noise = 1e-2
            return gp.eval()

        ledger = FeedbackLedger(2)
        ledger.add(U * scale, -(U - 0.3).square().sum(dim=-1))
        ledger.submit(0.5 * scale)
        chosen.append(make_proposer(bounds, strategy=strategy, fit=fit_in_box)(ledger) / scale)
    assert_close(chosen[1], chosen[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [1.0, 7.3])
def test_an_own_function_is_asked_for_the_fixed_value_alone(value):
    """For example, a model of tasks accepts only the values of its tasks."""
    asked = []

    def own(model: CensoredDelayModel, ledger: FeedbackLedger) -> Any:
        bound = own_bound(model, ledger)

        def recorded(X: Tensor) -> Tensor:
            asked.append(X[..., 1].detach().unique())
            return bound(X)

        return recorded

    bounds = torch.tensor([[0.0, 0.0], [1.0, 49.0]], dtype=torch.double)
    settings = SearchSettings(num_restarts=2, raw_samples=16)
    propose = DelayAwareProposer(
        bounds, DelayStrategy(own), fixed_features={1: value}, search=settings
    )
    ledger = FeedbackLedger(dim=2, censor_value=0.0)
    for x in torch.rand(6, generator=torch.Generator().manual_seed(0), dtype=torch.double):
        ledger.observe(ledger.submit(torch.stack([x, torch.full_like(x, value)])), x.item())
    assert propose(ledger)[1] == value
    assert torch.cat(asked).unique().tolist() == [value]


def fit_single(X: Tensor, Y: Tensor) -> SingleTaskGP:
    return fit(X, Y).float()


@pytest.mark.filterwarnings("ignore:None of the 6 queries:botorch.exceptions.InputDataWarning")
@pytest.mark.parametrize("acquisition", ["ucb", "ts"])
def test_models_in_single_precision(acquisition):
    """The answer is in double precision all the same, and not beyond the box by rounding."""
    box = torch.tensor([[0.7, 0.0], [0.8, 5.0]], **DOUBLE)
    rounded = box.float().double()
    assert rounded[0, 0] < box[0, 0] and rounded[1, 0] > box[1, 0]
    propose = make_proposer(box, acquisition=acquisition, fit=fit_single, fixed_features={1: 0.6})
    x = propose(make_ledger())
    assert x.dtype == torch.double
    # The optimum is to the left of the box.
    assert x[0] == (box[0, 0] if acquisition == "ucb" else x[0].clamp(*box[:, 0]))
    assert x[1] == 0.6


@pytest.mark.parametrize("acquisition", ["ucb", "ts"])
def test_choices_are_returned_to_the_last_digit(acquisition):
    choices = torch.cat([GRID, GRID]) + 1e-9  # no single-precision numbers, and twice
    x = make_proposer(acquisition=acquisition, fit=fit_single, choices=choices)(make_ledger())
    assert x.dtype == torch.double
    assert (choices == x).all(dim=-1).any()


@pytest.mark.parametrize("maximize", [True, False])
def test_a_censoring_value_of_the_wrong_sign_is_warned_of(maximize):
    """A bound from the wrong side would draw the search to pending queries."""
    _, Y = make_ledger().to_observations()
    best, beyond = (Y.max().item(), 1.0) if maximize else (Y.min().item(), -1.0)
    propose = make_proposer(maximize=maximize)
    with pytest.warns(InputDataWarning, match="`censor_value`.*better than every value"):
        propose(make_ledger(censor_value=best + beyond))
    propose(make_ledger(censor_value=best))  # may be the value of a flat objective
    # Without censoring the value is not used.
    make_proposer(imputation="none", maximize=maximize)(make_ledger(censor_value=best + beyond))


# ------------------------------------------------------------------ checks of the ledger


def test_values_whose_variance_overflows_are_named():
    """A run that diverges may return them; the model of all others could not be fitted either."""
    ledger = make_ledger()
    make_proposer()(ledger)
    ledger.observe(ledger.submit([0.0, 0.0]), -1e300)
    with pytest.raises(InputDataError, match=r"-1e\+300 of trial 9.*`amend`"):
        make_proposer()(ledger)
    ledger.amend(9, -2.0)
    make_proposer()(ledger)


def test_data_of_another_problem_are_warned_of():
    ledger = make_ledger()
    with pytest.warns(InputDataWarning, match="None of the 6 queries.*other units"):
        make_proposer(3.0 + BOUNDS)(ledger)
    with pytest.warns(InputDataWarning, match="None of the 144 `choices`.*other units"):
        make_proposer(choices=9.0 + GRID)(ledger)
    # A single query in the box, or a context outside, gives no warning.
    low = ledger[0].x - 0.01
    make_proposer(torch.stack([low, low + 0.02]))(ledger)
    alone = FeedbackLedger(2, censor_value=CENSOR)
    for i in range(3):
        alone.observe(alone.submit([9.0, float(i)]), float(i))
    make_proposer(fixed_features={0: 9.0})(alone)


def test_an_acquisition_that_returns_none():
    propose = make_proposer(strategy=DelayStrategy(lambda model, ledger: None))
    with pytest.raises(InputDataError, match="`acquisition`.*got NoneType"):
        propose(make_ledger())


def test_the_direction_is_the_ledgers():
    choice = make_proposer(maximize=False)(make_ledger(censor_value=2.0, maximize=False))
    ledger = make_ledger(censor_value=2.0, maximize=False)
    assert torch.equal(make_proposer()(ledger), choice)
    with pytest.raises(InputDataError, match="`maximize` is False in the ledger"):
        make_proposer(maximize=True)(ledger)
    # The first proposer with a ``maximize`` decides.
    ledger = make_ledger(censor_value=2.0)
    assert torch.equal(make_proposer(maximize=False)(ledger), choice)
    assert ledger.maximize is False


def with_noise(ledger: FeedbackLedger, variances: dict[int, float]) -> FeedbackLedger:
    """A copy with known noise variances for some trials."""
    copied = FeedbackLedger(2, censor_value=ledger.censor_value)
    for trial in ledger.trials:
        copied.submit(trial.x)
    for trial in ledger.trials:
        if trial.y is not None:
            copied.tell(trial.id, trial.y, variances.get(trial.id), time=trial.observed_at)
    return copied


def test_a_fit_of_the_users_own_may_take_the_noise():
    seen: list[Any] = []

    def own(X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> SingleTaskGP:
        seen.append(Yvar)
        return fit(X, Y)

    ledger = with_noise(make_ledger(), dict.fromkeys(range(6), 0.5))
    propose = make_proposer(fit=own)
    propose(ledger)
    propose(ledger)
    assert len(seen) == 1 and seen[0].tolist() == [[0.5]] * 6
    ledger.amend(0, ledger[0].y, yvar=0.25)  # other data, though the values are the same
    propose(ledger)
    assert len(seen) == 2 and sorted(seen[1].flatten().tolist()) == [0.25] + [0.5] * 5


def test_known_noise_that_is_not_used_is_warned_of():
    ledger = with_noise(make_ledger(), dict.fromkeys(range(6), 0.5))
    with pytest.warns(InputDataWarning, match="variances .* not used, as `fit` has no param"):
        make_proposer(fit=fit)(ledger)


def test_noise_that_is_known_of_some_values(monkeypatch):
    """Known noise is used, other noise is learned, and NaN does not cause another fit."""
    known = {i: 0.01 * (i + 1) for i in range(5)}
    ledger = with_noise(make_ledger(), known)
    spy = Spy(monkeypatch)
    propose = make_proposer(fit=None)
    propose(ledger)
    fits = propose._ledger_model._first.model
    propose(ledger)
    assert propose._ledger_model._first.model is fits
    gp: Any = spy.seen[-1].model.model
    noise = gp.likelihood.noise_covar.noise.flatten() * gp.outcome_transform.stdvs.squeeze() ** 2
    assert noise[5:].isnan().all() and len(noise) > 5
    assert_close(noise[:5], torch.tensor(list(known.values()), **DOUBLE))


def test_noise_free_values_can_be_fitted():
    """GPyTorch warns of variances below its least one; a warning is an error here."""
    X = draw_sobol_samples(BOUNDS, n=8, q=1, seed=3).squeeze(-2)
    Yvar = torch.zeros(8, 1, **DOUBLE)
    gp = fit_single_task_gp(X, X[:, :1] * 1e4, BOUNDS, Yvar)
    assert gp.posterior(X).mean.isfinite().all()
    gp = fit_single_task_gp(X, torch.ones(8, 1, **DOUBLE), BOUNDS, Yvar)
    assert gp.posterior(X).mean.isfinite().all()


@pytest.mark.parametrize("scale", [1.0, 3.0], ids=["inside", "outside"])
def test_no_warnings_of_equal_values_and_points_outside_of_the_box(scale):
    """Outcomes are standardised, as BoTorch recommends; a warning would be an error here."""
    X = scale * draw_sobol_samples(BOUNDS, n=8, q=1, seed=3).squeeze(-2)
    gp = fit_single_task_gp(X, torch.full((8, 1), 3e-9, **DOUBLE), BOUNDS)
    assert_close(gp.posterior(X).mean, torch.full((8, 1), 3e-9, **DOUBLE), rtol=1e-9, atol=0.0)


# ------------------------------------------------------------------ many pending queries


@pytest.mark.parametrize(
    ("acquisition", "limit", "num", "censors"),
    [("ucb", 4, 4, True), ("ts", 4, 5, False), ("ucb", None, 12, True)],
)
def test_more_pending_queries_than_a_limit_are_hallucinated(
    acquisition, limit, num, censors, monkeypatch
):
    spy = Spy(monkeypatch)
    ledger = make_ledger(num + 6, delay=num)
    make_proposer(acquisition=acquisition, max_censored=limit)(ledger)
    (acqf,) = spy.seen
    assert len(acqf.model.X_pending) == num
    imputed = acqf.model.Y_imputed
    if censors:
        assert (imputed == CENSOR).all() and acqf.nu > 1.0
        reference = make_proposer(acquisition=acquisition, max_censored=None)(ledger)
    else:
        predicted = fit(*ledger.to_observations()).posterior(ledger.pending()).mean
        assert_close(imputed, predicted)
        assert acqf.nu == 1.0
        reference = make_proposer(acquisition=acquisition, imputation="hallucinate", window=None)(
            ledger
        )
    assert torch.equal(
        make_proposer(acquisition=acquisition, max_censored=limit)(ledger), reference
    )


def asked(ledger: FeedbackLedger, num: int, delay: int, **arguments: Any) -> Tensor:
    """The next queries of the default strategy; their values arrive after ``delay`` queries."""
    arguments = {"fit": fit, "search": SearchSettings(2, 64), **arguments}
    propose, first = DelayAwareProposer(BOUNDS, **arguments), len(ledger)
    for _ in range(num):
        step(ledger, propose(ledger), delay=delay)
    return torch.stack([trial.x for trial in ledger.trials[first:]])


@pytest.mark.parametrize("num, kinds", [(20, "ucb ucb"), (21, "spread draw"), (22, "draw spread")])
def test_every_second_of_many_queries_is_spread(num, kinds, monkeypatch):
    """The others maximise a draw, with the pending queries hallucinated."""
    spy, ledger = Spy(monkeypatch), make_ledger(num + 7, delay=num)
    for kind in kinds.split():
        before = len(spy.seen)
        asked(ledger, 1, delay=num)
        made = spy.seen[before:]
        if kind == "spread":
            assert not made
            continue
        (acqf,) = made
        assert type(acqf).__name__ == {"ucb": "DelayedUpperConfidenceBound"}.get(
            kind, "DelayedThompsonSampling"
        )
        assert acqf.nu == {"ucb": 2.0, "draw": 1.0}[kind]
        predicted = fit(*ledger.snapshot().to_observations()).posterior(acqf.model.X_pending).mean
        assert acqf.model.Y_imputed.shape == predicted.shape


def test_spread_queries_fill_the_box():
    """Each of the sixteen cells of the box gets two of 32 spread queries."""
    ledger, others = make_ledger(64, delay=33), make_ledger(33).trials[1:]
    for other in others:
        asked(ledger, 1, delay=33)
        step(ledger, other.x, delay=33)
    spread = ledger.queries()[64::2]
    unit = (spread - BOUNDS[0]) / BOUNDS.diff(dim=0)
    cells = (unit * 4).floor().long()
    counts = torch.bincount(cells[:, 0] * 4 + cells[:, 1], minlength=16)
    assert (counts == 2).all()


def test_spread_queries_keep_away_from_failures():
    """If a half of the box fails, far fewer than half of the spread queries are in it."""
    ledger, middle = make_ledger(40, delay=33), BOUNDS.mean(dim=0)[0]
    propose = DelayAwareProposer(BOUNDS, fit=fit, search=SearchSettings(1, 16))
    others = draw_sobol_samples(BOUNDS, n=40, q=1, seed=5).squeeze(-2)
    for count in range(80):
        x = others[count // 2] if count % 2 else propose(ledger)
        trial_id = ledger.submit(x)
        if x[0] < middle:
            ledger.fail(trial_id)
    spread = ledger.queries()[40::2]
    in_vain = spread[:, 0] < middle
    assert in_vain.sum() <= 12 and in_vain[20:].sum() <= 4  # of 40, and of the last 20


def test_contexts_in_turns_each_have_their_share_of_spread_queries(monkeypatch):
    """In strict alternation, the model would never choose the queries of one of two contexts."""
    by_model = {0.0: 0, 1.0: 0}

    def maximizer(self, acqf, model, choices, fixed, failed):
        by_model[fixed[0]] += 1
        return torch.tensor([fixed[0], 2.0], **DOUBLE)

    monkeypatch.setattr(DelayAwareProposer, "_maximizer", maximizer)
    ledger = make_ledger(40, delay=33)
    propose = DelayAwareProposer(
        BOUNDS, fit=fit, fixed_features=lambda ledger: {0: float(len(ledger) % 2)}
    )
    for _ in range(24):
        step(ledger, propose(ledger), delay=33)
    assert all(3 <= count <= 9 for count in by_model.values())  # of 12 in each context
    # No point of the design is used in two contexts.
    places = [propose._place_among_spread(count) for count in range(100)]
    taken = [place for place in places if place is not None]
    assert 40 <= len(taken) == len(set(taken)) <= 60


@pytest.mark.parametrize("num_choices", [None, 9, 2500])
def test_models_without_draws_have_their_bound_maximised(num_choices, monkeypatch):
    """A kernel without random features has only joint draws, which are too slow for thousands."""

    def fit_without(X: Tensor, Y: Tensor) -> SingleTaskGP:
        return SingleTaskGP(X, Y, covar_module=RQKernel())

    spy, ledger = Spy(monkeypatch), make_ledger(29, delay=22)
    choices = None
    if num_choices is not None:
        choices = draw_sobol_samples(BOUNDS, n=num_choices, q=1, seed=3).squeeze(-2)
    asked(ledger, 1, delay=22, fit=fit_without, choices=choices)
    (acqf,) = spy.seen
    kind = "DelayedThompsonSampling" if num_choices == 9 else "DelayedUpperConfidenceBound"
    assert type(acqf).__name__ == kind
    assert acqf.nu == (1.0 if num_choices == 9 else 2.0)
    if num_choices is None:
        with pytest.raises(UnsupportedError, match="random features"):
            asked(ledger, 1, delay=22, fit=fit_without, strategy=DelayStrategy("ts"))
