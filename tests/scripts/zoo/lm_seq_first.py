# Word-level language model: data is [sequence, batch], the hidden state goes from chunk to chunk.
import argparse
import math

import torch
import torch.nn as nn

parser = argparse.ArgumentParser(description='Small LSTM language model')
parser.add_argument('--emsize', type=int, default=48, help='size of word embeddings')
parser.add_argument('--nhid', type=int, default=64, help='number of hidden units')
parser.add_argument('--lr', type=float, default=1.0, help='initial learning rate')
parser.add_argument('--clip', type=float, default=0.25, help='gradient clipping')
parser.add_argument('--epochs', type=int, default=4, help='upper epoch limit')
parser.add_argument('--batch_size', type=int, default=20, metavar='N', help='batch size')
parser.add_argument('--bptt', type=int, default=16, help='sequence length')
parser.add_argument('--seed', type=int, default=1111)
args = parser.parse_args()

torch.manual_seed(args.seed)
NTOKENS = 200


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


corpus = torch.randint(0, NTOKENS, (20 * 16 * 60 + 20,))
corpus[1::2] = (corpus[::2][: corpus[1::2].numel()] * 7 + 3) % NTOKENS
train_data = batchify(corpus, args.batch_size)


class RNNModel(nn.Module):
    def __init__(self, ntoken, ninp, nhid):
        super().__init__()
        self.ntoken, self.nhid = ntoken, nhid
        self.encoder = nn.Embedding(ntoken, ninp)
        self.rnn = nn.LSTM(ninp, nhid)
        self.decoder = nn.Linear(nhid, ntoken)

    def forward(self, input, hidden):
        output, hidden = self.rnn(self.encoder(input), hidden)
        decoded = self.decoder(output).view(-1, self.ntoken)
        return nn.functional.log_softmax(decoded, dim=1), hidden

    def init_hidden(self, bsz):
        weight = next(self.parameters())
        return (weight.new_zeros(1, bsz, self.nhid), weight.new_zeros(1, bsz, self.nhid))


def get_batch(source, i):
    seq_len = min(args.bptt, len(source) - 1 - i)
    return source[i:i + seq_len], source[i + 1:i + 1 + seq_len].view(-1)


model = RNNModel(NTOKENS, args.emsize, args.nhid)
criterion = nn.NLLLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

for epoch in range(1, args.epochs + 1):
    model.train()
    total_loss = 0.
    hidden = model.init_hidden(args.batch_size)
    for batch, i in enumerate(range(0, train_data.size(0) - 1, args.bptt)):
        data, targets = get_batch(train_data, i)
        hidden = tuple(h.detach() for h in hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        total_loss += loss.item()
    print('| epoch {:3d} | loss {:5.2f} | ppl {:8.2f}'.format(epoch, total_loss / (batch + 1), math.exp(total_loss / (batch + 1))))
