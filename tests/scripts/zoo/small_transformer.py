"""Encoder with attention for short sequences, batch first."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self, vocab=64, d_model=48, nhead=4, layers=2, classes=3):
        super().__init__()
        self.embedding = nn.Embedding(vocab, d_model)
        self.position = nn.Parameter(torch.zeros(1, 16, d_model))
        layer = nn.TransformerEncoderLayer(d_model, nhead, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.classifier = nn.Linear(d_model, classes)

    def forward(self, tokens):
        return self.classifier(self.encoder(self.embedding(tokens) + self.position).mean(1))


def main():
    torch.manual_seed(0)
    tokens = torch.randint(0, 64, (960, 16))
    labels = (tokens < 20).sum(1).clamp(3, 5) - 3
    train_loader = DataLoader(TensorDataset(tokens, labels), batch_size=16, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.8)
    for epoch in range(4):
        for batch, y in train_loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(batch), y)
            loss.backward()
            optimizer.step()
        scheduler.step()
        print(f"epoch {epoch} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
