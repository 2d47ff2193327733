"""A method is terms joined by '+'; each term changes the coefficients that its equation names."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spec.codec import decode, encode
from spec.errors import InputError
from spec.hyperparameters import FloatCoefficients, Hyperparameters, float_coefficients
from spec.method import PAPER_METHODS, Method, Prediction, Spike
from spec.plan import Plan
from spec.planner import Wishes, make_plan
from spec.zoo import digits_mlp

HYPERPARAMETERS = Hyperparameters(eta=0.5, momentum=0.75)
DELAY, FIRST_DELAY = 4, 9

finite = st.floats(-1e300, 1e300)


@st.composite
def methods(draw: st.DrawFn) -> Method:
    prediction = draw(st.sampled_from(Prediction))
    factor = prediction in (Prediction.VELOCITY, Prediction.STEP)
    return Method(
        spike=draw(st.one_of(st.sampled_from(Spike), st.tuples(finite, finite))),
        prediction=prediction,
        horizon=draw(st.floats(1e-300, 1e300)) if factor else 1.0,
        stashes_weights=prediction is not Prediction.BOTH_PASSES and draw(st.booleans()),
        shrink=draw(st.floats(0, 1, exclude_min=True)),
    )


def coefficients(text: str) -> FloatCoefficients:
    return float_coefficients(HYPERPARAMETERS, Method.parse(text), DELAY, FIRST_DELAY)


@given(methods())
def test_a_method_is_read_back_from_its_text_and_from_json(method: Method) -> None:
    assert Method.parse(str(method)) == method
    assert decode(Method, encode(method)) == method


def test_the_papers_methods_have_the_names_of_the_rtl() -> None:
    assert [str(method) for method in PAPER_METHODS] == ["pb", "sc", "lwp", "lwp+sc"]
    assert Method.parse("sc+lwp") == Method.LWP_SC
    assert all(method.has_hardware for method in PAPER_METHODS)


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        ("pb", {}),
        ("sc", {"a": 0.75**4, "b": (1 - 0.75**4) / 0.25}),
        ("sc=0.5,2", {"a": 0.5, "b": 2.0}),
        ("nesterov", {"a": 0.75, "b": 1.0}),
        ("lwp", {"horizon": 4}),
        ("lwp*2.5", {"horizon": 10}),
        ("lwpw*2", {"horizon": 8, "weight_form": True}),
        ("spectrain", {"horizon": 6, "backward_horizon": 2}),
        ("stash", {}),
        ("shrink=0.5", {"shrink": 0.0625}),
    ],
)
def test_a_term_changes_what_its_equation_names(text: str, changes: dict[str, float]) -> None:
    assert coefficients(text) == replace(coefficients("pb"), **changes)


@given(st.sampled_from(["sc", "lwp*3", "lwpw", "spectrain", "shrink=0.5", "lwp+sc+stash"]))
def test_no_delay_needs_no_correction(text: str) -> None:
    undelayed = [
        float_coefficients(HYPERPARAMETERS, Method.parse(term), 0) for term in (text, "pb")
    ]
    assert replace(undelayed[0], weight_form=False) == undelayed[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("PB", r"method must be terms of pb, sc, .* joined by \+, not 'PB'"),
        ("", "method must be terms of"),
        ("lwp*", "method must be terms of"),
        ("stash*2", "method must be terms of"),
        ("lwp+lwpw", "two terms that exclude each other"),
        ("sc+nesterov", "two terms that exclude each other"),
        ("lwp+spectrain", "two terms that exclude each other"),
        ("pb+sc", "pb stands alone"),
        ("spectrain+stash", "spectrain and stash exclude each other"),
        ("sc=1", "sc=A,B takes two numbers, not 1"),
        ("sc=1,x", "'1,x' must be numbers"),
        ("lwp*1,2", r"lwp\*F takes one number, not 2"),
        ("lwp*0", "the factor of lwp must be positive"),
        ("lwp*nan", "the factor of lwp must be positive"),
        ("sc=inf,0", "must be finite numbers"),
        ("shrink=0", "shrink must be above 0 and at most 1"),
        ("shrink=1.5", "shrink must be above 0 and at most 1"),
    ],
)
def test_a_wrong_method_says_what_is_legal(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Method.parse(text)


@pytest.mark.parametrize("text", ["sc=0.5,2", "lwp*1.5", "lwpw", "spectrain", "stash", "shrink=.5"])
def test_a_plan_of_a_method_without_hardware_has_floats_only(text: str) -> None:
    plan = make_plan(digits_mlp(), Wishes(Method.parse(text)))
    assert Plan.from_json(plan.to_json()) == plan
    with pytest.raises(InputError, match="has no hardware"):
        plan.coefficients(plan.hardware.convs[0])


@pytest.mark.parametrize("text", ["nesterov", "lwp*2", "lwp*2+nesterov"])
def test_whole_horizons_and_nesterov_have_hardware(text: str) -> None:
    plan = make_plan(digits_mlp(), Wishes(Method.parse(text)))
    planned = plan.hardware.convs[0]
    errors = {error.name: error for error in plan.coefficients(planned).errors}
    assert errors["horizon T"].used == plan.float_coefficients(planned).horizon
