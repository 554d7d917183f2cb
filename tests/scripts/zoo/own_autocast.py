import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(0)

x, w = torch.randn(1600, 48), torch.randn(48, 3)
loader = DataLoader(TensorDataset(x, (x @ w).argmax(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 192), nn.ReLU(), nn.Linear(192, 3)).to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for epoch in range(5):
    for inputs, targets in loader:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        with torch.autocast(device_type=device.type, dtype=torch.bfloat16):
            outputs = model(inputs)
            loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
    print(f"Epoch {epoch}: {loss.item():.4f}")
