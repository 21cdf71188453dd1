"""What vLLM imports when its backend for sleep mode is ``"cuda_mem"``; :func:`cuda_mem_torch.adapters.vllm` registers it."""

from __future__ import annotations

from vllm.device_allocator.sleep_mode_backend import CuMemBackend

from cuda_mem_torch import _install, adapters


class CudaMemBackend(CuMemBackend):  # type: ignore[misc]  # vLLM need not be here to check this
    """Which tags have a backup at which level is vLLM's to say: its own backend asks the allocator in place of which ours is."""

    def suspend(self, level: int = 1) -> None:
        try:
            super().suspend(level)
        finally:
            self._settle()

    def resume(self, tags: list[str] | None = None) -> None:
        try:
            super().resume(tags)
        finally:
            self._settle()

    def discard(self, tags: tuple[str, ...]) -> None:
        try:
            super().discard(tags)
        finally:
            self._settle()

    def _settle(self) -> None:
        """Some tags may sleep still, and none if what was asked for failed."""
        self._state = "SUSPENDED" if adapters._vllm_allocator().is_asleep() else "RUNNING"

    @classmethod
    def is_supported(cls) -> bool:
        return _install.is_enabled()

    @classmethod
    def preserves_communicators(cls) -> bool:
        return True

    @classmethod
    def preserves_compiled_artifacts(cls) -> bool:
        return True

    @classmethod
    def preserves_graphs_with_communicators(cls) -> bool:
        # A collective in a graph may have its buffers registered, and that does not survive: docs/sleep.md.
        return False

    @classmethod
    def supports_durable_storage(cls) -> bool:
        return False
