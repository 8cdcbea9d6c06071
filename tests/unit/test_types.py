from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from framework.types import ROOT_NAMESPACE, Namespace, RequestId, RequestInfo

GIVEN = RequestInfo(id=RequestId(3), max_total_tokens=9, namespace=Namespace(salt="x"), priority=2, tenant="t", turn=1)


def test_a_request_info_is_filled_once_and_frozen_from_then_on():
    assert type(GIVEN) is RequestInfo
    assert (GIVEN.id, GIVEN.max_total_tokens, GIVEN.priority, GIVEN.tenant, GIVEN.turn) == (3, 9, 2, "t", 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        GIVEN.priority = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        del GIVEN.tenant
    with pytest.raises(TypeError):
        RequestInfo(RequestId(3), 9)  # type: ignore[misc]


def test_every_field_of_a_request_info_is_an_argument_and_has_its_default():
    arguments = inspect.signature(RequestInfo).parameters
    assert list(arguments) == [field.name for field in dataclasses.fields(RequestInfo)]
    made = RequestInfo(id=RequestId(1), max_total_tokens=2)
    for name, argument in arguments.items():
        assert argument.default in (argument.empty, getattr(made, name)), name
    assert made.namespace is ROOT_NAMESPACE


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda info: pickle.loads(pickle.dumps(info))])
def test_a_copy_of_a_request_info_is_equal(again):
    made = again(GIVEN)
    assert made == GIVEN
    assert hash(made) == hash(GIVEN)
    assert type(made) is RequestInfo
    assert dataclasses.replace(made, priority=5).priority == 5


def test_a_subclass_of_request_info_keeps_its_own_kind():
    class Mine(RequestInfo):
        pass

    made = Mine(id=RequestId(1), max_total_tokens=2, tenant="t")
    assert type(made) is Mine
    assert (made.id, made.tenant, made.session) == (1, "t", None)
