"""Triton's interpreter without work that it repeats, which takes more than a third of its time.

At every call of a device function it patches the language, although a launch has patched what its kernel sees and the
first call of a device function what that sees. Whenever it needs a dtype it builds a table of all.
"""

import functools
import os


def pytest_configure():
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    from triton import language
    from triton.runtime import interpreter

    every_dtype = interpreter._get_np_dtype
    of_scalars = functools.cache(every_dtype)
    patched = functools.cache(interpreter._patch_lang)

    def numpy_dtype(dtype):
        return (of_scalars if type(dtype) is language.dtype else every_dtype)(dtype)

    def call(self, *args, **kwargs):
        patched(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter._get_np_dtype = numpy_dtype
    interpreter.InterpretedFunction.__call__ = call
