"""Node classification on one graph; the whole graph is one batch, and every epoch ends with a test."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class GraphConv(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(n_in, n_out))
        nn.init.xavier_uniform_(self.kernel)

    def forward(self, x, adj):
        return adj @ (x @ self.kernel)


class GCN(nn.Module):
    def __init__(self, n_in, n_hidden, n_classes):
        super().__init__()
        self.gc1, self.gc2 = GraphConv(n_in, n_hidden), GraphConv(n_hidden, n_classes)

    def forward(self, x, adj):
        return F.log_softmax(self.gc2(F.relu(self.gc1(x, adj)), adj), dim=1)


def make_graph(n=300, classes=4):
    label = torch.arange(n) % classes
    same = (label[:, None] == label[None, :]).float()
    adj = (torch.rand(n, n) < 0.02 + 0.06 * same).float()
    adj = ((adj + adj.t()) > 0).float() + torch.eye(n)
    d = adj.sum(1).rsqrt()
    return torch.randn(n, 32) + F.one_hot(label, 32), d[:, None] * adj * d[None, :], label


def train_iter(epoch, model, optimizer, features, adj, target, idx_train, idx_val):
    model.train()
    optimizer.zero_grad()
    output = model(features, adj)
    loss = F.nll_loss(output[idx_train], target[idx_train])
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        acc = (model(features, adj)[idx_val].argmax(1) == target[idx_val]).float().mean()
    if epoch % 40 == 0:
        print(f'Epoch: {epoch:04d} loss_train: {loss.item():.4f} acc_val: {acc:.4f}')


if __name__ == '__main__':
    torch.manual_seed(42)
    features, adj, target = make_graph()
    idx = torch.randperm(len(target))
    model = GCN(32, 48, 4)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    for epoch in range(240):
        train_iter(epoch + 1, model, optimizer, features, adj, target, idx[:150], idx[150:])
