"""The snippet of the README: a PyTorch model on the CPU, stepped by AdamW with 8-bit states."""

import memopt
import torch

model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))

device = memopt.Device("cpu")
allocator = memopt.Allocator(device, "expandable_segments:True")
optimizer = memopt.AdamW8bit(allocator, model.parameters(), lr=1e-3)

for step in range(20):
    x = torch.randn(64, 256)
    loss = (model(x) - x).square().mean()
    model.zero_grad()
    loss.backward()
    optimizer.step()  # takes each parameter's .grad

parameters = sum(p.numel() for p in model.parameters())
print(
    f"loss {loss.item():.3f}, {optimizer.state_bytes / parameters:.2f} bytes of state a parameter"
)
