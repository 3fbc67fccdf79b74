"""Concurrent programs of one launch in Triton's interpreter, which normally runs them one after the other."""

import inspect
import threading

import numpy as np
from triton.runtime import interpreter


class _Turns:
    """Runs one program at a time. After a program reads what others write, the next one continues."""

    def __init__(self, count):
        self._may_run = [threading.Semaphore(0) for _ in range(count)]
        self._left, self._current, self.error = list(range(count)), 0, None

    def _hand_on(self):
        later = [program for program in self._left if program > self._current]
        if self._left:
            self._current = (later or self._left)[0]
            self._may_run[self._current].release()

    def change(self):
        """Let the others run."""
        mine = self._current
        self._hand_on()
        self._may_run[mine].acquire()

    def run(self, program):
        """All programs to their ends; the first error is raised."""
        threads = [threading.Thread(target=self._body, args=(program, index)) for index in self._left]
        for thread in threads:
            thread.start()
        self._may_run[0].release()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise self.error

    def _body(self, program, index):
        self._may_run[index].acquire()
        try:
            if self.error is None:
                interpreter.interpreter_builder.set_grid_idx(index, 0, 0)
                program()
        except BaseException as error:
            self.error = error
        finally:
            self._left.remove(index)
            self._hand_on()


def take_turns(monkeypatch):
    """From now on the programs of a launch run in turns."""
    turns = []
    add = interpreter.InterpreterBuilder.create_atomic_rmw
    load = interpreter.InterpreterBuilder.create_masked_load

    def add_and_change(self, operation, pointer, value, *rest):
        seen = add(self, operation, pointer, value, *rest)
        if turns and not np.any(value.data):  # a look
            turns[-1].change()
        return seen

    def load_and_change(self, *arguments):  # the last says whether it is volatile; their number depends on the release
        values = load(self, *arguments)
        if turns and arguments[-1]:
            turns[-1].change()
        return values

    def call(self, *args, **kwargs):
        names = inspect.getfullargspec(self.fn).args
        arguments = inspect.getcallargs(self.fn, *args, **{k: v for k, v in kwargs.items() if k in names})
        arguments = {k: v if k in self.constexprs else interpreter._implicit_cvt(v) for k, v in arguments.items()}
        interpreter.interpreter_builder.set_grid_dim(*(*self.grid, 1, 1)[:3])
        patched = interpreter._patch_lang(self.fn)
        turns.append(_Turns(self.grid[0]))
        try:
            turns[-1].run(lambda: self.fn(**arguments))
        finally:
            turns.pop()
            if patched is not None:  # Triton 3.5 leaves its language patched
                patched.restore()

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_atomic_rmw", add_and_change)
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_masked_load", load_and_change)
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", call)
