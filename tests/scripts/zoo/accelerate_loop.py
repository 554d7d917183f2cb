import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def training_function(config, args):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.gradient_accumulation_steps)
    set_seed(config["seed"])
    x = torch.randn(1600, 20)
    train_dataloader = DataLoader(TensorDataset(x, x[:, 1:2] * x[:, :1]), shuffle=True, batch_size=config["batch_size"])
    model = nn.Sequential(nn.Linear(20, 170), nn.ReLU(), nn.Linear(170, 1))
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=config["lr"])
    model, optimizer, train_dataloader = accelerator.prepare(model, optimizer, train_dataloader)
    for epoch in range(config["num_epochs"]):
        model.train()
        for inputs, targets in train_dataloader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
        accelerator.print(f"epoch {epoch}: {loss.item():.4f}")


def main():
    parser = argparse.ArgumentParser(description="Simple example of training script.")
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    args = parser.parse_args()
    training_function({"lr": 2e-3, "num_epochs": 5, "seed": 42, "batch_size": 32}, args)


if __name__ == "__main__":
    main()
