"""A tiny model with random weights, its tokenizer, and 400 lines of made-up words."""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

draw = random.Random(0)
words = ["".join(draw.choice("aeioulnrst") for _ in range(draw.randint(2, 6))) for _ in range(300)]
special = ["<pad>", "<s>", "</s>", "<unk>"]
vocabulary = {word: number for number, word in enumerate(dict.fromkeys([*special, *words]))}
plain = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
plain.pre_tokenizer = pre_tokenizers.Whitespace()
names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
PreTrainedTokenizerFast(tokenizer_object=plain, **names).save_pretrained("model")
config = LlamaConfig(
    vocab_size=len(vocabulary),
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=128,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
LlamaForCausalLM(config).save_pretrained("model")
Path("data").mkdir()
with Path("data/train.jsonl").open("w") as file:
    for _ in range(400):
        text = " ".join(draw.choice(words) for _ in range(draw.randint(20, 60)))
        file.write(json.dumps({"text": text}) + "\n")
