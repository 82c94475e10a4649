"""Encoders of text: BERT and its descendants, of transformers."""

import transformers
from zoo.entry import Family, Outputs, choices, classifier, draw, words

FAMILY = Family("Encoders of text (transformers)")

SMALL = dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, pad_token_id=0,
)  # fmt: skip


def encoder(kind, config, task="SequenceClassification", attention="eager", padded=True):
    def make():
        generator = draw()
        settings = getattr(transformers, f"{kind}Config")(attn_implementation=attention, num_labels=3, **config)
        tokens = words(generator, 3)
        mask = (tokens > 1).long()
        if padded:
            mask[0, -3:] = 0
        inputs = {"input_ids": tokens, "attention_mask": mask}
        model = getattr(transformers, f"{kind}For{task}")(settings)
        shape = {"SequenceClassification": (3,), "TokenClassification": (3, 8), "MaskedLM": (3, 8)}[task]
        labels = choices(generator, 50 if task == "MaskedLM" else 3, *shape)
        return classifier(Outputs(model, inputs), inputs, labels)

    return make


FAMILY.add("BERT", encoder("Bert", SMALL), quick=True)
FAMILY.add("BERT, sdpa, token classes", encoder("Bert", SMALL, "TokenClassification", "sdpa"))
FAMILY.add("BERT, folded", encoder("Bert", SMALL), fold=True)
FAMILY.add("BERT, tied head", encoder("Bert", SMALL, "MaskedLM"))
FAMILY.add("RoBERTa", encoder("Roberta", SMALL | {"max_position_embeddings": 20}))
FAMILY.add("DeBERTa", encoder("Deberta", SMALL | {"relative_attention": True, "pos_att_type": "c2p|p2c"}))
FAMILY.add("DeBERTa v2", encoder("DebertaV2", SMALL | {"relative_attention": True, "pos_att_type": "c2p|p2c",
                                                       "position_buckets": 4, "norm_rel_ebd": "layer_norm",
                                                       "share_att_key": True}))  # fmt: skip
FAMILY.add("ALBERT", encoder("Albert", SMALL | {"embedding_size": 16}))
FAMILY.add("DistilBERT", encoder("DistilBert", dict(
    vocab_size=50, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=16,
    dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
)))  # fmt: skip
FAMILY.add("ELECTRA", encoder("Electra", SMALL | {"embedding_size": 16}))
FAMILY.add("MPNet", encoder("MPNet", SMALL | {"max_position_embeddings": 20}))
FAMILY.add("ModernBERT", encoder("ModernBert", dict(
    vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    max_position_embeddings=16, pad_token_id=0, attention_dropout=0.0, embedding_dropout=0.0, mlp_dropout=0.0,
    classifier_dropout=0.0, local_attention=4, reference_compile=False,
), padded=False), notes="no padding: a row of the sliding window that sees nothing is NaN in PyTorch")  # fmt: skip
