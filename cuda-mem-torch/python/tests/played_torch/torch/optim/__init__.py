from torch.optim.optimizer import Optimizer

# As PyTorch does.
del optimizer
