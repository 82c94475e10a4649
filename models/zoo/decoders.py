"""Decoders of text, which predict the next token: GPT-2 and what came after it, of transformers."""

import transformers
from zoo.entry import Family, Outputs, classifier, draw, words

FAMILY = Family("Decoders of text (transformers)")

SMALL = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=16, use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1, attention_dropout=0.0,
)  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "tie_word_embeddings": False}


def decoder(kind, config, attention="eager", mask=True):
    def make():
        generator = draw()
        settings = getattr(transformers, f"{kind}Config")(attn_implementation=attention, **config)
        text = words(generator, 2, 9)
        inputs = {"input_ids": text[:, :-1].contiguous()}
        if mask:
            inputs["attention_mask"] = (inputs["input_ids"] > 1).long()
        model = getattr(transformers, f"{kind}ForCausalLM" if kind != "GPT2" else "GPT2LMHeadModel")(settings)
        return classifier(Outputs(model, inputs, use_cache=False), inputs, text[:, 1:].contiguous())

    return make


GPT2 = dict(
    vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False, bos_token_id=1, eos_token_id=1,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
FAMILY.add("GPT-2, no mask", decoder("GPT2", GPT2, mask=False), reasons={
    "torchscript": "knows no aten::diff, by which transformers looks for packed texts where it gets no mask: give it one",
})  # fmt: skip
FAMILY.add("GPT-2, head of its own", decoder("GPT2", GPT2 | {"tie_word_embeddings": False}, "sdpa"))
FAMILY.add("GPT-NeoX", decoder("GPTNeoX", SMALL | {"hidden_dropout": 0.0, "rotary_pct": 0.5}))
FAMILY.add("GPT-J", decoder("GPTJ", GPT2 | {"rotary_dim": 8}))
FAMILY.add("BLOOM", decoder("Bloom", dict(
    vocab_size=50, hidden_size=32, n_layer=2, n_head=4, use_cache=False, hidden_dropout=0.0, attention_dropout=0.0,
    bos_token_id=1, eos_token_id=1, pad_token_id=0,
)))  # fmt: skip
FAMILY.add("OPT", decoder("OPT", dict(
    vocab_size=50, hidden_size=32, word_embed_proj_dim=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64,
    max_position_embeddings=16, dropout=0.0, attention_dropout=0.0, layerdrop=0.0, use_cache=False, pad_token_id=0,
    bos_token_id=1, eos_token_id=1,
)))  # fmt: skip
FAMILY.add("Llama", decoder("Llama", GROUPED), quick=True)
FAMILY.add("Llama, sdpa", decoder("Llama", GROUPED, "sdpa"))
FAMILY.add("Mistral, sliding window", decoder("Mistral", GROUPED | {"sliding_window": 4}))
FAMILY.add("Qwen2", decoder("Qwen2", GROUPED))
FAMILY.add("Qwen3", decoder("Qwen3", GROUPED | {"head_dim": 8}))
FAMILY.add("Gemma", decoder("Gemma", GROUPED | {"head_dim": 8}))
FAMILY.add("Gemma 2", decoder("Gemma2", GROUPED | {"head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 8}))
FAMILY.add("Phi", decoder("Phi", GROUPED | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "qk_layernorm": True}))
FAMILY.add("Phi-3", decoder("Phi3", GROUPED | {"resid_pdrop": 0.0, "embd_pdrop": 0.0}))
