"""Images whose two readings and their frequencies are known, for models that should learn both."""

import torch


def two_readings(size=8, ones=7, raters=10):
    """A constant image of which `ones` of the raters label everything 1, the others everything 0."""
    labels = torch.zeros(1, raters, size, size, dtype=torch.int64)
    labels[:, :ones] = 1
    return torch.zeros(1, 1, size, size), labels


def learn(model, *, steps, lr, batch=32, size=8):
    """Train on the two readings, and say which share of 400 samples is each: (all 1, all 0)."""
    image, labels = two_readings(size)
    image, labels = image.expand(batch, -1, -1, -1), labels.expand(batch, -1, -1, -1)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for step in range(steps):
        optimizer.zero_grad()
        model(image, labels, keys=[(1, step, i) for i in range(batch)])["loss"].backward()
        optimizer.step()
    share = model.sample(image[:1], 400).labels[0].float().mean((1, 2))
    return (share > 0.95).float().mean().item(), (share < 0.05).float().mean().item()
