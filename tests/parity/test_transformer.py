"""The model against torch.nn.Transformer, the paper's formulas, and itself."""

import dataclasses
import itertools
import math
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dragoman.export.graph_modules import DistanceBias
from dragoman.model.config import Activation, NormOrder, PositionKind, TransformerConfig
from dragoman.model.transformer import MultiHeadAttention, RelativeBias, Transformer, lengths_to_visible, sinusoid_table
from tests.support.tiny import GATED, PAPER, TINY, random_model

SOURCE_LENGTHS = torch.tensor([9, 1, 4, 6])
TARGET_LENGTHS = torch.tensor([3, 7, 1, 5])

ORDERS: tuple[NormOrder, ...] = ("pre", "post")
ACTIVATIONS: tuple[Activation, ...] = ("relu", "gelu")
KINDS = [
    dataclasses.replace(TINY, norm_order=order, final_norm=final, activation=activation)
    for order, final, activation in itertools.product(ORDERS, (True, False), ACTIVATIONS)
]


def kind_name(config: TransformerConfig) -> str:
    return f"{config.norm_order}-{'final' if config.final_norm else 'bare'}-{config.activation}"


def random_ids(rows: int, width: int, seed: int, most: int = TINY.source_vocabulary) -> Tensor:
    return torch.randint(4, most, (rows, width), generator=torch.Generator().manual_seed(seed))


def real(lengths: Tensor, width: int) -> Tensor:
    """True at the positions [B, width] before the padding."""
    return torch.tensor([[position < length for position in range(width)] for length in lengths.tolist()])


def oracle_of(model: Transformer) -> nn.Transformer:
    """PyTorch's own Transformer with the weights of `model`."""
    config = model.config
    shape = (config.d_model, config.heads, config.d_ff, 0.0, config.activation)
    norm_first = config.norm_order == "pre"
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(*shape, batch_first=True, norm_first=norm_first),
        config.encoder_layers,
        nn.LayerNorm(config.d_model) if config.final_norm else None,
        enable_nested_tensor=False,
    )
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(*shape, batch_first=True, norm_first=norm_first),
        config.decoder_layers,
        nn.LayerNorm(config.d_model) if config.final_norm else None,
    )
    weights = {name: tensor for name, tensor in model.named_parameters() if name.startswith(("encoder", "decoder"))}
    oracle = nn.Transformer(custom_encoder=encoder, custom_decoder=decoder, batch_first=True)
    oracle.load_state_dict(renamed(weights))
    return oracle


def renamed(ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same weights under PyTorch's names, with query, key and value concatenated."""
    norms = {"self_residual": "norm1", "cross_residual": "norm2", "feed_residual": "norm3"}
    theirs: dict[str, Tensor] = {}
    for name, tensor in ours.items():
        stack, _, rest = name.partition(".")
        if stack in ("encoder_norm", "decoder_norm"):
            theirs[f"{stack[:7]}.norm.{rest}"] = tensor
            continue
        layer, part, inner, *kind = rest.split(".")
        where = f"{stack}.layers.{layer}"
        if part == "feed_forward":
            theirs[f"{where}.{'linear1' if inner == 'inner' else 'linear2'}.{kind[0]}"] = tensor
        elif part in norms:
            norm = "norm2" if stack == "encoder" and part == "feed_residual" else norms[part]
            theirs[f"{where}.{norm}.{kind[0]}"] = tensor
        else:
            attention = "self_attn" if part == "self_attention" else "multihead_attn"
            if inner == "output":
                theirs[f"{where}.{attention}.out_proj.{kind[0]}"] = tensor
            elif inner == "query":
                parts = [ours[name.replace("query", role)] for role in ("query", "key", "value")]
                theirs[f"{where}.{attention}.in_proj_{kind[0]}"] = torch.cat(parts)
    return theirs


def paper_embedding(ids: Tensor, table: Tensor) -> Tensor:
    """Sections 3.4 and 3.5 of the paper, number by number."""
    d_model = table.shape[1]
    positions = [
        [
            math.sin(at / 10000 ** (i / d_model)) if i % 2 == 0 else math.cos(at / 10000 ** ((i - 1) / d_model))
            for i in range(d_model)
        ]
        for at in range(ids.shape[1])
    ]
    return functional.embedding(ids, table) * math.sqrt(d_model) + torch.tensor(positions)


@pytest.mark.parametrize("config", KINDS, ids=kind_name)
def test_outputs_equal_torch_nn_transformer(config: TransformerConfig) -> None:
    model = random_model(config).double()  # so that rounding does not matter
    source, target = random_ids(4, 9, seed=1), random_ids(4, 7, seed=2)
    hidden_source, hidden_target = ~real(SOURCE_LENGTHS, 9), ~real(TARGET_LENGTHS, 7)
    oracle = oracle_of(model).double()
    table = model.source_embedding.tokens.weight
    with torch.no_grad():
        states = oracle.encoder(paper_embedding(source, table), src_key_padding_mask=hidden_source)
        hidden = oracle.decoder(
            paper_embedding(target, table),
            states,
            tgt_mask=torch.ones(7, 7, dtype=torch.bool).triu(1),
            tgt_key_padding_mask=hidden_target,
            memory_key_padding_mask=hidden_source,
        )
        logits = hidden @ table.T

        our_states = model.encode(source, SOURCE_LENGTHS)
        our_logits = model(source, SOURCE_LENGTHS, target)

    assert our_states.std() > 0.1  # so that agreement is not trivial
    torch.testing.assert_close(our_states[~hidden_source], states[~hidden_source], rtol=0, atol=1e-5)
    torch.testing.assert_close(our_logits[~hidden_target], logits[~hidden_target], rtol=0, atol=1e-5)


def test_separate_embeddings_and_output_bias_are_used() -> None:
    config = dataclasses.replace(
        TINY,
        target_vocabulary=50,
        shared_embedding=False,
        tied_output=False,
        output_bias=True,
        scale_embedding=False,
        position_kind="learned",
    )
    model = random_model(config)
    source, target = random_ids(4, 9, seed=1), random_ids(4, 7, seed=2, most=50)
    oracle = oracle_of(model)

    def embedded(ids: Tensor, side: str) -> Tensor:
        weights = dict(model.named_parameters())
        return weights[f"{side}_embedding.tokens.weight"][ids] + weights[f"{side}_embedding.positions"][: ids.shape[1]]

    with torch.no_grad():
        mask = ~real(SOURCE_LENGTHS, 9)
        states = oracle.encoder(embedded(source, "source"), src_key_padding_mask=mask)
        causal = torch.ones(7, 7, dtype=torch.bool).triu(1)
        hidden = oracle.decoder(
            embedded(target, "target"), states, tgt_mask=causal, memory_key_padding_mask=mask, tgt_is_causal=False
        )
        logits = hidden @ model.projection.weight.T + model.projection.bias
        torch.testing.assert_close(model(source, SOURCE_LENGTHS, target), logits, rtol=1e-4, atol=2e-5)


# --- positions


def test_positions_equal_the_closed_form() -> None:
    table = sinusoid_table(400, 512)
    assert table[1, :4].tolist() == pytest.approx([0.8415, 0.5403, 0.8219, 0.5697], abs=5e-5)
    assert table[2, :2].tolist() == pytest.approx([0.9093, -0.4161], abs=5e-5)
    assert math.asin(table[1, 2]) == pytest.approx(1 / 1.0366, abs=5e-5)  # 10000^(2/512)
    for at, i in ((0, 0), (1, 511), (37, 100), (399, 0), (399, 255), (399, 510)):
        angle = at / 10000 ** ((i - i % 2) / 512)
        assert table[at, i].item() == pytest.approx(math.cos(angle) if i % 2 else math.sin(angle), abs=1e-6)


@pytest.mark.parametrize("kind", ["sinusoid", "learned"])
def test_positions_start_at_the_offset(kind: PositionKind) -> None:
    model = random_model(dataclasses.replace(TINY, position_kind=kind, position_offset=2))
    embedding = model.target_embedding
    ids = random_ids(3, 6, seed=3)
    with torch.no_grad():
        whole = embedding(ids)
        words = embedding.tokens(ids) * math.sqrt(TINY.d_model)
        rows = dict([*model.named_buffers(), *model.named_parameters()])["target_embedding.positions"]
        torch.testing.assert_close(whole - words, rows[2:8].expand(3, 6, -1), rtol=0, atol=1e-5)
        late = embedding(ids[:, 4:5], torch.tensor([4, 0, 4]))
    assert torch.equal(late[[0, 2]], whole[[0, 2], 4:5])
    assert not torch.equal(late[1], whole[1, 4:5])


def test_the_position_table_fits_exactly_the_longest_text() -> None:
    model = random_model(dataclasses.replace(TINY, max_positions=5, position_offset=2))
    with torch.no_grad():
        assert model.encode(random_ids(1, 5, seed=4), torch.tensor([5])).shape == (1, 5, TINY.d_model)
        with pytest.raises(IndexError):
            model.encode(random_ids(1, 6, seed=4), torch.tensor([6]))


def test_near_distances_have_a_class_each_and_far_ones_share() -> None:
    config = dataclasses.replace(GATED, relative_buckets=8, relative_distance=20)
    tables = [RelativeBias(config, both_sides=both) for both in (True, False)]
    for bias in tables:
        bias.weight.data[:] = torch.arange(8.0)[:, None]
    before_and_after, before = ([int(row[0]) for row in bias.table()] for bias in tables)
    # Four classes a side: 0, 1, 2 to 6, and all beyond (2 + 2 · log(d / 2) / log(10), rounded down).
    assert before_and_after[20::-1] == [0, 1] + 5 * [2] + 14 * [3]
    assert before_and_after[21:] == [5] + 5 * [6] + 14 * [7]
    # Eight for the past alone: 0 to 3, then 4 + 4 · log(d / 4) / log(5).
    assert before[20::-1] == [0, 1, 2, 3, 4, 4, 5, 5, 5, 6, 6, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]
    assert before[21:] == 20 * [0]


def test_relative_bias_is_constant_beyond_the_farthest_distance() -> None:
    bias = RelativeBias(GATED, both_sides=True)
    with torch.no_grad():
        found, table = bias(30), bias.table()
    assert found.shape == (1, GATED.heads, 30, 30)
    assert torch.equal(found[0, :, 12, 9], table[20 - 3])
    assert torch.equal(found[0, :, 9, 12], table[20 + 3])
    assert torch.equal(found[0, :, 0, 29], table[40])


def test_a_cached_step_has_the_bias_of_each_row_position() -> None:
    bias = RelativeBias(GATED, both_sides=False)
    with torch.no_grad():
        whole = bias(30)[0]
        found = DistanceBias(bias).at(torch.tensor([3, 0, 27]), 30)
    assert found.shape == (3, GATED.heads, 1, 30)
    for row, position in enumerate((3, 0, 27)):
        assert torch.equal(found[row, :, 0], whole[:, position])


# --- masks


@pytest.mark.parametrize("config", [TINY, PAPER, GATED], ids=kind_name)
def test_a_target_token_affects_no_earlier_output(config: TransformerConfig) -> None:
    model = random_model(config)
    source, lengths = random_ids(2, 5, seed=5), torch.tensor([5, 3])
    target = random_ids(2, 8, seed=6)
    with torch.no_grad():
        before = model(source, lengths, target)
        for step in range(1, 8):
            changed = target.clone()
            changed[:, step] = 4 + (changed[:, step] - 3) % (TINY.target_vocabulary - 4)
            after = model(source, lengths, changed)
            assert torch.equal(after[:, :step], before[:, :step])
            assert (after[:, step:] != before[:, step:]).any(dim=-1).all()


def test_padding_never_changes_a_row() -> None:
    model = random_model()
    source, target = random_ids(4, 9, seed=1), random_ids(4, 7, seed=2)
    with torch.no_grad():
        states = model.encode(source, SOURCE_LENGTHS)
        logits = model(source, SOURCE_LENGTHS, target)
        for row, length in enumerate(SOURCE_LENGTHS.tolist()):
            alone, one = source[row : row + 1, :length], torch.tensor([length])
            torch.testing.assert_close(model.encode(alone, one)[0], states[row, :length], rtol=0, atol=2e-5)
            torch.testing.assert_close(model(alone, one, target[row : row + 1])[0], logits[row], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_the_content_of_padding_has_no_effect(dtype: torch.dtype) -> None:
    model = random_model().to(dtype)
    source, target = random_ids(4, 9, seed=1), random_ids(4, 7, seed=2)
    padding = ~real(SOURCE_LENGTHS, 9)
    other = torch.where(padding, random_ids(4, 9, seed=8), source)
    with torch.no_grad():
        states = model.encode(source, SOURCE_LENGTHS)
        assert torch.equal(model.encode(other, SOURCE_LENGTHS)[~padding], states[~padding])
        hidden = model.decode(target, states, SOURCE_LENGTHS)
        spoiled = states.masked_fill(padding[:, :, None], 1e3)
        assert torch.equal(model.decode(target, spoiled, SOURCE_LENGTHS), hidden)
    assert hidden.isfinite().all()


def test_lengths_affect_the_encoder_and_cross_attention() -> None:
    model = random_model()
    source, target = random_ids(1, 9, seed=1), random_ids(1, 7, seed=2)
    with torch.no_grad():
        states = model.encode(source, torch.tensor([9]))
        assert not torch.allclose(model.encode(source, torch.tensor([6]))[:, :6], states[:, :6], atol=1e-2)
        hidden = model.decode(target, states, torch.tensor([9]))
        assert not torch.allclose(model.decode(target, states, torch.tensor([6])), hidden, atol=1e-2)


def test_lengths_determine_the_visible_positions() -> None:
    visible = lengths_to_visible(torch.tensor([0, 2, 3]), 3)
    assert visible.shape == (3, 1, 1, 3)
    assert visible[:, 0, 0].tolist() == [[False, False, False], [True, True, False], [True, True, True]]


def test_attention_is_the_softmax_of_scaled_visible_products() -> None:
    attention = MultiHeadAttention(dataclasses.replace(TINY, d_model=4, heads=2))
    with torch.no_grad():
        for part in (attention.query, attention.key, attention.value, attention.output):
            part.weight.copy_(torch.eye(4))
            part.bias.zero_()
        memory = torch.tensor([[[1.0, 0.0, 0.0, 2.0], [0.0, 1.0, 0.0, 0.0], [9.0, 9.0, 9.0, 9.0]]])
        x = torch.tensor([[[math.sqrt(2) * math.log(3), 0.0, 0.0, 0.0]]])
        found = attention(x, memory, lengths_to_visible(torch.tensor([2]), 3))
    # First head: scores log 3 and 0, so weights 3/4 and 1/4. Second head: both 0, so one half each.
    assert found.flatten().tolist() == pytest.approx([0.75, 0.25, 0.0, 1.0])


# --- size


def test_base_has_the_hand_counted_parameters() -> None:
    embedding = 37_000 * 512  # shared by source, target and output
    attention = 4 * (512 * 512 + 512)
    feed_forward = (512 * 2048 + 2048) + (2048 * 512 + 512)
    norm = 2 * 512
    encoder = 6 * (attention + feed_forward + 2 * norm)
    decoder = 6 * (2 * attention + feed_forward + 3 * norm)
    assert embedding + encoder + decoder == 63_082_496

    with torch.device("meta"):
        model = Transformer(TransformerConfig.base(37_000))
    assert sum(parameter.numel() for parameter in model.parameters()) == 63_082_496


def test_big_has_the_parameters_of_the_paper() -> None:
    with torch.device("meta"):
        model = Transformer(TransformerConfig.big(37_000))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert millions == pytest.approx(213, rel=0.02)  # table 3 of the paper
