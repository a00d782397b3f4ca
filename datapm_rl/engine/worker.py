"""The decoding thread, the only one that touches model, store and requests.

It alternates between commands from its inbox and decoding: admit waiting requests, one token for every row, hand out
what is finished. Everything from outside (a request, an abort, a weight update, a cancellation) is a command, so
nothing ever happens under a running forward, and order is kept.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future

import numpy as np
import torch

from datapm_rl.engine.decoder import Decoder, Request
from datapm_rl.engine.sampling import Generation
from datapm_rl.engine.weights import WeightUpdate
from datapm_rl.errors import InfraError


class DecodingThread:
    """Runs `decoder` until `stop`. `submit`, `drop`, `call` and `stop` may come from any thread.

    `paused` holds decoding; it is set and unset by commands. `busy_s`: seconds spent decoding.
    """

    def __init__(self, decoder: Decoder, update: WeightUpdate, threads: int):
        self.decoder = decoder
        self.waiting: deque[Request] = deque()
        self.paused = False
        self.stopped = False
        self.busy_s = 0.0
        self._update = update
        self._torch_threads = threads
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._futures: dict[Request, Future[Generation]] = {}
        self._thread = threading.Thread(target=self._run, name="cpu-engine", daemon=True)
        self._thread.start()

    def submit(self, request: Request) -> Future[Generation]:
        """Queue a request; the future holds its generation."""
        future: Future[Generation] = Future()

        def enqueue() -> None:
            self._futures[request] = future
            self.waiting.append(request)

        self._inbox.put(enqueue)
        return future

    def drop(self, request: Request) -> None:
        """Forget a request nobody waits for, wherever it is."""
        self._inbox.put(lambda: self._drop(request))

    def call(self, action: Callable[[], None]) -> Future[None]:
        """Run `action` between two steps; the future holds its end or its exception."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                action()
            except Exception as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self._inbox.put(run)
        return done

    def stop(self) -> None:
        """End the thread and fail what is left; returns when it is over."""
        self.stopped = True
        self._inbox.put(lambda: None)
        self._thread.join()

    # Actions for `call`: they run in the thread.

    def abort_all(self) -> None:
        """Pause; end all requests, running and waiting, as "aborted". What they computed is parked."""
        self.paused = True
        requests = [*self.decoder.rows, *self.waiting]
        for request in list(self.decoder.rows):
            self.decoder.remove(request)
        self.waiting.clear()
        for request in requests:
            request.out.stop_reason = "aborted"
        self._finish(requests)

    def sleep(self) -> None:
        """`abort_all`, then give back all memory of keys and values."""
        self.abort_all()
        self.decoder.prefixes.clear()
        self.decoder.store.clear()

    def resume(self) -> None:
        """Decode again."""
        self.paused = False

    def write_weights(self, named: Mapping[str, torch.Tensor | np.ndarray], version: int | None, last: bool) -> None:
        """Write a bucket; after the last, forget all old keys and values and prefill running requests again."""
        self._update.write(named, last)
        if last:
            self.decoder.version = self.decoder.version + 1 if version is None else version
            self.decoder.prefixes.clear()
            self.waiting.extendleft(reversed(self.decoder.clear()))

    # The thread itself.

    @torch.inference_mode()
    def _run(self) -> None:
        torch.set_num_threads(self._torch_threads)  # a setting of the calling thread
        while not self.stopped:
            self._drain_inbox()
            if self._idle():
                continue
            start = time.perf_counter()
            try:
                if admitted := [self.waiting.popleft() for _ in range(min(self.decoder.free, len(self.waiting)))]:
                    self._finish(self.decoder.admit(admitted))
                self._finish(self.decoder.step())
            except Exception as error:  # the boundary: whoever waits for a token learns of it
                self._fail("engine_failed", f"{type(error).__name__}: {error}")
            self.busy_s += time.perf_counter() - start
        self._drain_inbox()
        self._fail("engine_closed", "the engine was closed")

    def _idle(self) -> bool:
        return self.paused or self._update.partial or not (self.waiting or self.decoder.rows)

    def _drain_inbox(self) -> None:
        """Run the commands at hand; sleep until the first one when there is nothing to decode."""
        try:
            self._inbox.get(block=self._idle() and not self.stopped)()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def _drop(self, request: Request) -> None:
        if self._futures.pop(request, None) is None:
            return  # it had ended
        if request in self.decoder.rows:
            self.decoder.remove(request)
        else:
            self.waiting.remove(request)

    def _finish(self, requests: list[Request]) -> None:
        for request in requests:
            future = self._futures.pop(request)
            if future.set_running_or_notify_cancel():
                future.set_result(request.out)

    def _fail(self, cause: str, detail: str) -> None:
        self.decoder.clear()
        self.waiting.clear()
        for future in self._futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(InfraError(cause, detail))
        self._futures.clear()
