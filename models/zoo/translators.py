"""Encoders with decoders, of transformers: text, or sound, to text."""

import torch
import transformers
from zoo.entry import Family, Outputs, classifier, draw, words

FAMILY = Family("Sequence to sequence (transformers)")

SMALL = dict(
    vocab_size=50, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
    encoder_ffn_dim=64, decoder_ffn_dim=64, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
    use_cache=False, pad_token_id=0, bos_token_id=1, eos_token_id=1, decoder_start_token_id=1,
)  # fmt: skip
T5 = dict(
    vocab_size=50, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, dropout_rate=0.0, use_cache=False,
    relative_attention_num_buckets=8, relative_attention_max_distance=16, pad_token_id=0, decoder_start_token_id=0,
    eos_token_id=1,
)  # fmt: skip


def translator(kind, config, attention="eager"):
    def make():
        generator = draw()
        settings = getattr(transformers, f"{kind}Config")(attn_implementation=attention, **config)
        source, text = words(generator, 2, 7), words(generator, 2, 6)
        inputs = {
            "input_ids": source, "attention_mask": (source > 1).long(), "decoder_input_ids": text[:, :-1].contiguous(),
        }  # fmt: skip
        model = getattr(transformers, f"{kind}MTModel" if kind == "Marian" else f"{kind}ForConditionalGeneration")(settings)
        return classifier(Outputs(model, inputs, use_cache=False), inputs, text[:, 1:].contiguous())

    return make


def whisper():
    generator = draw()
    config = transformers.WhisperConfig(
        num_mel_bins=8, max_source_positions=10, max_target_positions=8, attn_implementation="eager",
        mask_time_prob=0.0, encoder_layerdrop=0.0, decoder_layerdrop=0.0, suppress_tokens=None, begin_suppress_tokens=None, **SMALL,
    )  # fmt: skip
    text = words(generator, 2, 6)
    inputs = {
        "input_features": torch.randn(2, 8, 20, generator=generator), "decoder_input_ids": text[:, :-1].contiguous(),
    }  # fmt: skip
    inputs["decoder_attention_mask"] = torch.ones_like(inputs["decoder_input_ids"])
    model = transformers.WhisperForConditionalGeneration(config)
    return classifier(Outputs(model, inputs, use_cache=False), inputs, text[:, 1:].contiguous())


# A buffer, which PyTorch does not train; the older exporter does not say what is one.
BIAS, FROZEN = ("--freeze", "*final_logits_bias"), "--freeze '*final_logits_bias'"
FAMILY.add("T5", translator("T5", T5))
FAMILY.add("T5 v1.1 (gated)", translator("T5", T5 | {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}))
FAMILY.add("BART", translator("Bart", SMALL | {"max_position_embeddings": 16}), build=BIAS, notes=FROZEN)
# Sines and cosines, which PyTorch holds as parameters without a gradient: no exporter says so.
SINES = ("--freeze", "*final_logits_bias,*embed_positions.weight"), "--freeze '*final_logits_bias,*embed_positions.weight'"
FAMILY.add("Marian", translator("Marian", SMALL | {"max_position_embeddings": 16}), build=SINES[0], notes=SINES[1])
WAVES = ("--freeze", "*encoder.embed_positions.weight"), "--freeze '*encoder.embed_positions.weight': sines, which PyTorch does not train"
FAMILY.add("Whisper", whisper, build=WAVES[0], notes=WAVES[1])
