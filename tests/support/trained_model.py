"""A tiny Llama that has read a few files: what it offers are words and lines, not babble.

Trained on the spot (some seconds on one core), for tests in which suggestions must be such as one
accepts, types along and leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from support.typing import PROGRAM

END, PRE, SUF, MID = "<|endoftext|>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"

TABBED = """
// 日本語: 座標を読む 🎉
package points

type Point struct {
	name string // 名前 📍
	x, y int
}

func (p *Point) Move(dx int, dy int) {
	p.x += dx
	p.y += dy
}

func Read(lines []string) ([]Point, error) {
	points := []Point{}
	for number, line := range lines {
		if line == "" {
			continue // 空行
		}
		point, err := parse(line)
		if err != nil {
			return nil, fmt.Errorf("行 %d: 🚫 %w", number, err)
		}
		points = append(points, point)
	}
	return points, nil
}

func Farthest(points []Point) Point {
	best := points[0]
	for _, point := range points[1:] {
		if point.x > best.x || point.y > best.y {
			best = point
		}
	}
	return best
}
"""

VOCABULARY, CONTEXT = 400, 1024
STEPS, ROWS, LENGTH = 160, 12, 128


def write_trained_model(folder: Path) -> Path:
    """Train the model and write it into a new folder. The same on one machine each time."""
    folder.mkdir(parents=True)
    texts = [*_renamed(PROGRAM, "event", "order"), *_renamed(TABBED, "point", "place")]
    tokenizer = _tokenizer(texts)
    tokenizer.save(str(folder / "tokenizer.json"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # more of them only wait for each other
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        _trained(tokenizer, texts).save_pretrained(folder)
    torch.set_num_threads(threads)
    return folder


def _renamed(text: str, old: str, new: str) -> Iterator[str]:
    yield text
    yield text.replace(old, new).replace(old.title(), new.title())


def _tokenizer(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, PRE, SUF, MID],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _trained(tokenizer: Tokenizer, texts: list[str]) -> LlamaForCausalLM:
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            initializer_range=0.08,
            tie_word_embeddings=True,
            bos_token_id=None,
            pad_token_id=None,
            eos_token_id=tokenizer.token_to_id(END),
        )
    )
    read = [torch.tensor(tokenizer.encode(text + END).ids) for text in texts]
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    for _ in range(STEPS):
        rows = torch.stack([_sample(tokenizer, read) for _ in range(ROWS)])
        model(input_ids=rows, labels=rows).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


def _sample(tokenizer: Tokenizer, read: list[torch.Tensor]) -> torch.Tensor:
    """A stretch of a text, half of the time with its middle put last."""
    text = read[_random(len(read))]
    start = _random(len(text) - LENGTH + 1)
    if _random(2):
        return text[start : start + LENGTH]
    stretch = text[start : start + LENGTH - 4]
    one, two = sorted((_random(LENGTH - 4), _random(LENGTH - 4)))
    pre, suf, mid, end = (
        torch.tensor([tokenizer.token_to_id(name)]) for name in (PRE, SUF, MID, END)
    )
    return torch.cat([pre, stretch[:one], suf, stretch[two:], mid, stretch[one:two], end])


def _random(end: int) -> int:
    return int(torch.randint(end, ()))
