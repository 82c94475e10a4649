"""Transformers and modern convolutions for images, of transformers."""

import torch
import transformers
from torch.nn import functional as F
from zoo.entry import Example, Family, Outputs, choices, classifier, draw, pictures, randomized, segmenter, words

FAMILY = Family("Vision (transformers)")

VIT = dict(
    image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip
SWIN = dict(
    image_size=16, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 2], window_size=4, drop_path_rate=0.0,
    hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
)  # fmt: skip


def image_classifier(kind, config, size=16, **attention):
    def make():
        generator = draw()
        settings = getattr(transformers, f"{kind}Config")(num_labels=5, **attention, **config)
        inputs = {"pixel_values": pictures(generator, 3, 3, size)}
        model = getattr(transformers, f"{kind}ForImageClassification")(settings)
        return classifier(Outputs(model, inputs), inputs, choices(generator, 5, 3))

    return make


def segformer():
    generator = draw()
    config = transformers.SegformerConfig(
        num_labels=4, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[2, 1], hidden_sizes=[8, 16], patch_sizes=[7, 3],
        strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2], decoder_hidden_size=16, drop_path_rate=0.0,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, classifier_dropout_prob=0.0,
    )  # fmt: skip
    inputs = {"pixel_values": pictures(generator, 2, 3, 32)}
    model = transformers.SegformerForSemanticSegmentation(config)
    return segmenter(Outputs(model, inputs), inputs, choices(generator, 4, 2, 8, 8))


def detr():
    """The assignment of boxes to queries is made outside: here each query has its class and box."""
    generator = draw()
    backbone = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", out_features=["stage2"])
    config = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, use_pretrained_backbone=False, backbone=None,
        d_model=16, num_queries=5, num_labels=3, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=32, decoder_ffn_dim=32, dropout=0.0,
        attention_dropout=0.0, activation_dropout=0.0, attn_implementation="eager",
    )  # fmt: skip
    inputs = {"pixel_values": pictures(generator, 2, 3, 32)}
    model = Outputs(transformers.DetrForObjectDetection(config), inputs, ("logits", "pred_boxes"))
    randomized(model)
    targets = {"labels": choices(generator, 4, 2, 5), "boxes": torch.rand(2, 5, 4, generator=generator)}
    loss = "cross_entropy(logits, labels) + 5*l1(pred_boxes, boxes)"

    def criterion(logits, predicted, labels, boxes):
        return F.cross_entropy(logits.transpose(1, 2), labels) + 5 * F.l1_loss(predicted, boxes)

    return Example(model, inputs, targets, loss, criterion, ("logits", "pred_boxes"))


def clip():
    generator = draw()
    text = dict(
        vocab_size=50, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=8, eos_token_id=2, bos_token_id=1, pad_token_id=0,
    )  # fmt: skip
    vision = dict(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=16, patch_size=4,
    )  # fmt: skip
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=12, attn_implementation="eager")
    inputs = {"input_ids": words(generator, 4, 8), "pixel_values": pictures(generator, 4)}
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    model = transformers.CLIPModel(config)
    return classifier(Outputs(model, inputs, ("logits_per_image",)), inputs, torch.arange(4))


VIEWS = {"dynamo": "refuses views of what scaled_dot_product_attention returns: take eager attention, as in the next row"}
FAMILY.add("ViT", image_classifier("ViT", VIT, attn_implementation="eager"))
FAMILY.add("ViT, sdpa", image_classifier("ViT", VIT, attn_implementation="sdpa"))
FAMILY.add("DeiT", image_classifier("DeiT", VIT, attn_implementation="eager"))
FAMILY.add("BEiT", image_classifier("Beit", VIT | {"use_relative_position_bias": True, "drop_path_rate": 0.0}), reasons=VIEWS)
FAMILY.add("BEiT, eager", image_classifier("Beit", VIT | {"use_relative_position_bias": True, "drop_path_rate": 0.0}, attn_implementation="eager"))
FAMILY.add("DINOv2", image_classifier("Dinov2", VIT | {"drop_path_rate": 0.0}, attn_implementation="eager"))
FAMILY.add("Swin", image_classifier("Swin", SWIN), reasons=VIEWS)
FAMILY.add("Swin, eager", image_classifier("Swin", SWIN, attn_implementation="eager"))
FAMILY.add("Swin v2", image_classifier("Swinv2", SWIN))
FAMILY.add("ConvNeXt", image_classifier("ConvNext", dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, drop_path_rate=0.0)))
FAMILY.add("ConvNeXt v2", image_classifier("ConvNextV2", dict(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=2, drop_path_rate=0.0)))
FAMILY.add("RegNet", image_classifier("RegNet", dict(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], groups_width=8), 32),
           optimizer="sgd", rate=2.0**-6)  # fmt: skip
FAMILY.add("PoolFormer", image_classifier("PoolFormer", dict(
    hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[3, 3], strides=[2, 2], padding=[1, 1], mlp_ratio=2.0,
    drop_path_rate=0.0)))  # fmt: skip
FAMILY.add("SegFormer", segformer)
FAMILY.add("DETR", detr, optimizer="sgd", rate=2.0**-8)
FAMILY.add("CLIP", clip)
