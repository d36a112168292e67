"""Work for other threads: tasks that end, changes that nothing splits, operations in line."""

from __future__ import annotations

import contextlib
import contextvars
import doctest
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from shardcore.threads import lock, work
from shardcore.threads.lock import Mutex
from shardcore.threads.tally import Tally
from shardcore.threads.work import (
    InTurn,
    Line,
    changed_here,
    helper_threads,
    run_tasks,
    set_once,
    uninterrupted,
)

SOON = 30.0
posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="signals and forks as POSIX has them")


def script(text: str) -> list[str]:
    """Run a program of its own, in which Ctrl-C works whatever this one inherited."""
    head = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", head + text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    return done.stdout.splitlines()


# --- tasks -----------------------------------------------------------------------------------


def test_no_task_runs_any_more_when_the_error_of_another_is_raised() -> None:
    begun, ended = threading.Event(), []

    def task(number: int) -> None:
        if number == 0:
            assert begun.wait(SOON)
            raise ZeroDivisionError
        begun.set()
        time.sleep(0.2)
        ended.append(number)

    # Task 1 runs in a helper while task 0, here or there, raises.
    with pytest.raises(ZeroDivisionError):
        run_tasks(2, task, 1)
    assert ended == [1]


@pytest.mark.parametrize("first", [0, 1])
def test_the_error_of_the_lowest_task_is_raised_whichever_comes_first(first: int) -> None:
    together = threading.Barrier(2)

    def task(number: int) -> None:
        together.wait(SOON)
        if number != first:
            time.sleep(0.1)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        run_tasks(2, task, 1)


def test_tasks_not_begun_at_an_error_are_left_out() -> None:
    ran: list[int] = []

    def task(number: int) -> None:
        ran.append(number)
        raise ValueError(number)

    with pytest.raises(ValueError, match=r"^0$"):
        run_tasks(1000, task, 1)
    assert len(ran) <= 2


@pytest.mark.slow
@posix
def test_ctrl_c_in_a_task_waits_for_the_helpers() -> None:
    told = script(
        """
import os, threading, time
from shardcore.threads.work import run_tasks
main, begun, ended = threading.get_ident(), threading.Event(), []
def task(number):
    if threading.get_ident() == main:
        begun.wait(30)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)
    begun.set()
    time.sleep(0.5)
    ended.append(number)
try:
    run_tasks(2, task, 1)
except KeyboardInterrupt:
    print("interrupted", len(ended))
    time.sleep(1)
    print(len(ended))
"""
    )
    assert told == ["interrupted 1", "1"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores as Linux has them")
@pytest.mark.skipif(len(getattr(os, "sched_getaffinity", set)(0)) < 2, reason="one core")
def test_a_helper_is_woken_on_another_core_than_its_caller_has() -> None:
    told = script(
        """
import os, threading, time
from shardcore.threads.work import helpers_kept_off, run_tasks
cores, caller, seen = os.sched_getaffinity(0), threading.get_native_id(), []
one, other = sorted(cores)[:2]
together = threading.Barrier(2)

def task(number):
    together.wait(30)
    if threading.get_native_id() != caller:
        seen.append((threading.get_native_id(), os.sched_getaffinity(0) == cores))

def times_kept_off(caller_on, helper_on):
    os.sched_setaffinity(caller, caller_on)
    os.sched_setaffinity(seen[0][0], helper_on)
    before = helpers_kept_off()
    run_tasks(2, task, 1)
    time.sleep(0.2)     # until the helper sleeps, where it was
    return helpers_kept_off() - before

run_tasks(2, task, 1)
times_kept_off({one}, {one})
print("nowhere else to go:", times_kept_off({one}, {one}), seen[-1][1])
print("on the caller's core:", times_kept_off({one}, cores), seen[-1][1])
times_kept_off({other}, {one})
print("on another:", times_kept_off({other}, cores), seen[-1][1])
"""
    )
    assert told == [
        "nowhere else to go: 0 False",
        "on the caller's core: 1 True",
        "on another: 0 True",
    ]


# --- changes ---------------------------------------------------------------------------------


def test_a_change_is_made_elsewhere_and_nested_ones_there() -> None:
    def twice() -> tuple[int, int]:
        return threading.get_ident(), uninterrupted(threading.get_ident)

    outer, inner = uninterrupted(twice)
    assert outer == inner != threading.get_ident()


def test_a_change_gives_back_results_errors_and_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("here")
    assert uninterrupted(variable.get) == "here"
    assert uninterrupted(divmod, 7, 2) == (3, 1)
    contexts: list[BaseException | None] = []

    def fail() -> None:
        with pytest.raises(ZeroDivisionError) as caught:
            uninterrupted(divmod, 1, 0)
        contexts.append(caught.value.__context__)

    # In a thread of its own: where a test interrupts at every bytecode, CPython can leave an error
    # "being handled" in the main thread, which is then the context of all that follow.
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join(SOON)
    assert contexts == [None]


def variable() -> contextvars.ContextVar[str]:
    """Return one that a compiled call sets for this thread only: another has a copy of it."""
    return contextvars.ContextVar("variable", default="")


def test_a_change_of_compiled_calls_is_made_here() -> None:
    where, found = variable(), []
    uninterrupted(InTurn([partial(found.append, 3), partial(where.set, "here")]))
    assert (found, where.get()) == ([3], "here")


def test_a_change_of_any_other_calls_is_made_elsewhere() -> None:
    where, idents = variable(), []
    uninterrupted(InTurn([partial(where.set, "here"), lambda: idents.append(0)]))
    assert (idents, where.get()) == ([0], "")


class Answer:
    def __call__(self) -> int:
        return 42

    def method(self) -> int:
        return 42


@pytest.mark.parametrize(
    ("call", "compiled"),
    [
        (len, True),
        ([].append, True),
        (Tally(1).read, True),
        (helper_threads, True),
        (partial(setattr, SimpleNamespace(), "a", 1), True),
        (partial(Mutex().run, partial(max, 3, 5)), True),
        (InTurn([helper_threads]), True),
        (InTurn([helper_threads, lambda: 1]), False),
        (lambda: 1, False),
        (Answer(), False),
        (Answer().method, False),
        (Answer, False),
        (partial(lambda: 1), False),
        (partial(Mutex().run, lambda: 1), False),
        (partial(Mutex().run, partial(Answer().method)), False),
        (partial(sorted, [], key=lambda one: one), False),
    ],
)
def test_which_calls_run_no_bytecode(call: Callable[[], Any], compiled: bool) -> None:
    assert InTurn([call]).compiled is compiled
    assert InTurn([helper_threads, call]).compiled is compiled


def test_an_error_ends_compiled_calls_and_is_raised_here() -> None:
    found: list[int] = []
    calls = InTurn([partial(found.append, 3), partial(divmod, 1, 0), partial(found.append, 5)])
    with pytest.raises(ZeroDivisionError):
        uninterrupted(calls)
    assert found == [3]
    assert uninterrupted(threading.get_ident) != threading.get_ident()  # as before


def test_a_fork_waits_for_compiled_calls() -> None:
    held = threading.Lock()
    held.acquire()
    change = InTurn([held.acquire])
    assert change.compiled
    changing = threading.Thread(target=uninterrupted, args=(change,), daemon=True)
    changing.start()
    time.sleep(0.2)
    forked = threading.Thread(target=lock._before_fork, daemon=True)
    forked.start()
    try:
        forked.join(0.3)
        assert forked.is_alive()
    finally:
        held.release()
        forked.join(SOON)
        changing.join(SOON)
        lock._after_fork_in_parent()
    assert not forked.is_alive()


def test_an_attribute_is_set_once() -> None:
    one = SimpleNamespace(ended="")
    set_once(one, "ended", "applied")
    set_once(one, "ended", "dropped")
    assert one.ended == "applied"
    with pytest.raises(AttributeError):
        set_once(one, "begun", "now")


def test_a_change_keeps_nothing_alive() -> None:
    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError

    thing = Thing()
    gone = weakref.ref(thing)
    uninterrupted(id, thing)
    with contextlib.suppress(ValueError):
        uninterrupted(fail, thing)
    del thing
    assert gone() is None


def test_many_threads_change_at_once() -> None:
    together = threading.Barrier(5)  # each in a thread of its own: none waits for another
    passed: list[int] = []
    threads = [
        threading.Thread(target=lambda: passed.append(uninterrupted(together.wait, SOON)))
        for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON)
    assert sorted(passed) == [0, 1, 2, 3, 4]


@posix
def test_ctrl_c_comes_after_a_change() -> None:
    told = script(
        """
import os, threading, time
from shardcore.threads.work import uninterrupted
state = []
def change():
    state.append("begun")
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.3)
    state.append("ended")
try:
    uninterrupted(change)
    print("not reached")
except KeyboardInterrupt:
    print(*state)
print(uninterrupted(max, 3, 5))
"""
    )
    assert told == ["begun ended", "5"]


@pytest.mark.slow
@posix
@pytest.mark.parametrize("late", [False, True])
def test_a_fork_waits_for_changes_and_no_other_begins_meanwhile(late: bool) -> None:
    told = script(
        f"""
import os, threading, time
from shardcore.threads.work import uninterrupted
first, second, begun = [], [], threading.Event()
def change(state, seconds):
    state.append("begun")
    begun.set()
    time.sleep(seconds)
    state.append("ended")
def begin_late():
    begun.wait(30)
    time.sleep(0.3)
    uninterrupted(change, second, 1.5)  # would be half done at the fork
one = threading.Thread(target=uninterrupted, args=(change, first, 0.8))
two = threading.Thread(target=begin_late)
one.start()
if {late}:
    two.start()
begun.wait(30)
child = os.fork()
if child == 0:
    print(*first, len(second), uninterrupted(max, 3, 5), flush=True)
    os._exit(0)
os.waitpid(child, 0)
one.join()
if {late}:
    two.join()
print(*first, *second)
"""
    )
    assert told[0] == "begun ended 0 5"
    assert told[1] == " ".join(["begun", "ended"] * (1 + late))


@posix
def test_what_others_held_at_a_fork_is_free_in_the_child() -> None:
    told = script(
        """
import os, threading, time
from shardcore.threads.lock import Mutex, ReadWriteLock
from shardcore.threads.work import helper_threads, run_tasks, uninterrupted
mutex, read, written = Mutex(), ReadWriteLock(), ReadWriteLock()
inside, let_go = threading.Barrier(6), threading.Event()
def hold():
    inside.wait(30)
    let_go.wait(30)
holders = [
    threading.Thread(target=take, args=(hold,))
    for take in (mutex.run, read.read, read.read, written.write)
]
holders.append(threading.Thread(target=run_tasks, args=(1, lambda number: hold(), 1)))
for holder in holders:
    holder.start()
inside.wait(30)
waiting = threading.Thread(target=read.write, args=(max, 3, 5))  # counted as a writer that waits
waiting.start()
while not read.writers_waiting:
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(20)
    found = [mutex.run(max, 1, 2), read.read(max, 1, 2), read.write(max, 1, 2)]
    found += [written.write(max, 1, 2), written.read(max, 1, 2), helper_threads()]
    run_tasks(4, found.append, 2)
    print(*found[:6], len(found), helper_threads(), uninterrupted(max, 3, 5), flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1])
let_go.set()
for holder in (*holders, waiting):
    holder.join(30)
print(any(holder.is_alive() for holder in holders), read.writers_waiting)
"""
    )
    assert told == ["2 2 2 2 2 0 10 2 5", "0", "False 0"]


# --- operations in line ------------------------------------------------------------------------


def served(line: Line) -> threading.Thread:
    thread = threading.Thread(target=line.serve, daemon=True)
    thread.start()
    return thread


def test_a_line_has_one_server() -> None:
    line = Line()
    first, second = served(line), served(line)
    where: list[Any] = []
    for _ in range(50):
        line.put("note", lambda: where.append((threading.get_ident(), line.is_served_here())))
    line.wait()
    assert len(set(where)) == 1
    assert where[0][1] is True
    assert not line.is_served_here()
    line.end()
    line.end()  # again, as one does that was cut short
    line.wait()
    for thread in (first, second):
        thread.join(SOON)
        assert not thread.is_alive()


def test_what_is_behind_a_failure_does_not_run() -> None:
    line, ran = Line(), []
    go_on = threading.Event()
    line.put("wait", lambda: go_on.wait(SOON))
    failed = line.put("divide", lambda: 1 // 0)
    behind = line.put("note", lambda: ran.append("behind"))
    server = served(line)
    go_on.set()
    line.wait(behind)
    line.wait()
    assert (failed.done, behind.done, ran) == (False, False, [])
    operation, error = line.take_failure() or ("", None)
    assert (operation, type(error)) == ("divide", ZeroDivisionError)
    assert line.failure is None
    after = line.put("note", lambda: "after")
    line.wait(after)
    assert (after.done, after.value) == (True, "after")
    line.end()
    server.join(SOON)
    assert not server.is_alive()


def test_helpers_are_those_of_this_process() -> None:
    run_tasks(2, lambda number: None, 1)
    assert helper_threads() >= 1


@pytest.mark.parametrize("module", [lock, work])
def test_examples_of_compiled_modules_run(module: Any) -> None:
    """Which pytest does not find, as it looks into Python files only."""
    failed, tried = doctest.testmod(module)
    assert failed == 0
    assert tried >= 10


def test_a_change_here_is_in_this_thread_and_so_are_those_inside() -> None:
    here = threading.get_ident()
    assert changed_here(uninterrupted, threading.get_ident) == here
    with pytest.raises(ZeroDivisionError):
        changed_here(divmod, 1, 0)
    assert uninterrupted(threading.get_ident) != here
