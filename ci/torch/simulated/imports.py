"""What happens when PyTorch is imported, by what the environment says."""

import os
from functools import partial

# The garbage collector, which finds nothing in the programs below, would have a third of their time.
IMPORT = "import gc; gc.disable(); import torch; gc.freeze(); "

BACKEND = "print(torch.cuda.get_allocator_backend())"
SPLIT = "block = torch.empty(1, device='cuda'); print(torch.cuda.memory._snapshot()['allocator_settings']['max_split_size'] >> 20)"

# Variables, what runs then, the exit status, and what is printed. Each in an interpreter of its own, which imports PyTorch.
AFRESH = {
    "asked": ({"CUDA_MEM_TORCH": "1"}, BACKEND, 0, "cuda-mem"),
    "asked_with_a_bad_option": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1"}, BACKEND, 0, "CUDA_MEM_TORCH=1 does nothing"
    ),
    "required_with_a_bad_option": (
        {"CUDA_MEM_TORCH": "require", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:1"}, BACKEND, 1, "max_split_size_mb"
    ),
    "asked_beside_the_asynchronous_backend": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, BACKEND, 0, "remove that from PYTORCH_CUDA_ALLOC_CONF"
    ),
}

# The same where PyTorch is there already: it looks for backends once more, as at the end of its import.
LATER = {
    # PyTorch ends at its first allocation then, whoever allocates.
    "asked_with_an_option_that_pytorch_refuses": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "pinned_num_register_threads:3"}, BACKEND, 0, "native\nexit status"
    ),
    "required_with_an_option_that_pytorch_refuses": (
        {"CUDA_MEM_TORCH": "require", "PYTORCH_CUDA_ALLOC_CONF": "pinned_num_register_threads:3"}, BACKEND, 1, "has to be power of 2"
    ),
    "asked_with_spellings_that_pytorch_accepts": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512MB,roundup_power2_divisions:[256:1,>:4,]"}, BACKEND, 0, "cuda-mem\nexit status"
    ),
    "asked_with_a_comma_at_the_end": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512,"}, BACKEND, 0, "cuda-mem\nexit status"
    ),
    # PyTorch looks at no sign that it passes over.
    "asked_with_other_signs": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb,512]"}, BACKEND, 0, "cuda-mem\nexit status"
    ),
    # It looks at this name on every device, before the general one.
    "asked_with_settings_under_another_name": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_HIP_ALLOC_CONF": "max_split_size_mb:64", "PYTORCH_ALLOC_CONF": "max_split_size_mb:128"}, SPLIT, 0, "64\nexit status"
    ),
    # As natively: what the program says before it uses CUDA.
    "asked_with_settings_that_come_later": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32"},
        "import os; os.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'max_split_size_mb:64'; " + SPLIT, 0, "64\nexit status"
    ),
    "asked_beside_the_asynchronous_backend_by_the_other_name": (
        {"CUDA_MEM_TORCH": "1", "PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"}, BACKEND, 0, "remove that from PYTORCH_ALLOC_CONF"
    ),
}


def calls_without_a_driver():
    """What asks for the current device says that there is no driver, in PyTorch's words."""
    import cuda_mem_torch

    cuda_mem_torch.enable()
    tag, sleep, wake, state = cuda_mem_torch.tag, cuda_mem_torch.sleep, cuda_mem_torch.wake, cuda_mem_torch.state
    calls = (state, lambda: state("cuda"), lambda: tag("weights"), sleep, wake, lambda: cuda_mem_torch.set_limit(None), cuda_mem_torch.stats)
    for number, call in enumerate(calls):
        try:
            call()
        except Exception as error:
            assert "Found no NVIDIA driver" in str(error), (number, repr(error))
        else:
            raise AssertionError(number)


def look_again(variables, program):
    import torch

    os.environ.update(variables)
    torch._import_device_backends()
    exec(program, {"torch": torch})


globals().update({name: partial(look_again, *told[:2]) for name, told in LATER.items()})
