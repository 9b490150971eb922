"""Networks for pictures outside transformers: one of the smallest of every family in timm, and of torchvision.

Their numbers can't be made small from outside, so these are the networks themselves with random weights, on small
pictures where the network takes any size.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

LARGEST = 120_000_000
SIDE = 64

FAMILIES = {
    "beit": "beit_base_patch16_224", "byoanet": "eca_botnext26ts_256", "byobnet": "mobileone_s1",
    "cait": "cait_xxs24_224", "coat": "coat_tiny", "convit": "convit_tiny", "convmixer": "convmixer_768_32",
    "convnext": "convnext_atto_rms", "cpubone": "cpubone_nano", "crossvit": "crossvit_tiny_240", "csatv2": "csatv2",
    "cspnet": "cs3darknet_focus_s", "cspnext": "cspnext_tiny", "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m", "deit": "deit_tiny_patch16_224", "densenet": "densenet121", "dla": "dla46_c",
    "dpn": "dpn48b", "edgenext": "edgenext_xx_small", "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0", "efficientnet": "efficientnet_b0",
    "efficientvim": "efficientvim_m1", "efficientvit_mit": "efficientvit_b0", "efficientvit_msra": "efficientvit_m0",
    "eva": "eva02_tiny_patch14_224", "fasternet": "fasternet_t0", "fastvit": "fastvit_t8",
    "focalnet": "focalnet_tiny_srf", "gcvit": "gcvit_xxtiny", "gemma4_vit": "gemma4_vit_167m",
    "ghostnet": "ghostnet_050", "hardcorenas": "hardcorenas_b", "hgnet": "hgnetv2_b0", "hiera": "hiera_tiny_224",
    "hieradet_sam2": "sam2_hiera_tiny", "hrnet": "hrnet_w18_small", "iformer": "iformer_s",
    "inception_next": "inception_next_atto", "inception_resnet_v2": "inception_resnet_v2",
    "inception_v3": "inception_v3", "inception_v4": "inception_v4", "lcnetv2": "lcnetv2_small", "levit": "levit_128s",
    "lowformer": "lowformer_b0", "mambaout": "mambaout_femto", "maxxvit": "coatnet_pico_rw_224",
    "metaformer": "poolformer_s12", "mlp_mixer": "gmixer_12_224", "mobilenetv3": "mobilenetv3_small_050",
    "mobilenetv5": "mobilenetv5_300m", "mobilevit": "mobilevit_xxs", "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_gap", "nasnet": "nasnetalarge", "nest": "nest_tiny",
    "nextvit": "nextvit_small", "nfnet": "nf_regnet_b0", "pit": "pit_xs_224", "pnasnet": "pnasnet5large",
    "pvt_v2": "pvt_v2_b0", "qwen3_vit": "qwen3_vit_88m", "rdnet": "rdnet_tiny", "regnet": "regnetx_002",
    "repghost": "repghostnet_050", "repvit": "repvit_m1", "res2net": "res2net50_14w_8s", "resnest": "resnest14d",
    "resnet": "resnet18", "resnetv2": "resnetv2_18", "rexnet": "rexnet_100", "selecsls": "selecsls42",
    "senet": "legacy_seresnet18", "sequencer": "sequencer2d_s", "shvit": "shvit_s1", "sknet": "skresnet18",
    "starnet": "starnet_s050", "swiftformer": "swiftformer_xs", "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256", "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224", "tnt": "tnt_s_legacy_patch16_224", "tresnet": "tresnet_m",
    "twins": "twins_svt_small", "vgg": "vgg11", "visformer": "visformer_tiny",
    "vision_transformer": "vit_small_patch8_224", "vision_transformer_hybrid": "vit_base_mci_224",
    "vision_transformer_relpos": "test_vit_relpos", "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224", "volo": "volo_d1_224", "vovnet": "ese_vovnet19b_dw",
    "xception": "legacy_xception", "xception_aligned": "xception41p", "xcit": "xcit_nano_12_p8_224",
}  # fmt: skip

TORCHVISION = (
    "alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "efficientnet_v2_s", "googlenet",
    "inception_v3", "maxvit_t", "mnasnet0_5", "mobilenet_v2", "mobilenet_v3_small", "regnet_x_400mf",
    "regnet_y_400mf", "resnet18", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_1", "swin_t",
    "swin_v2_t", "vgg11", "vit_b_32", "wide_resnet50_2", "deeplabv3_mobilenet_v3_large", "fcn_resnet50",
    "lraspp_mobilenet_v3_large", "r3d_18", "mvit_v2_s", "swin3d_t", "raft_small",
)  # fmt: skip


class Network:
    """What is asked of a network: its model and what it is fed with."""

    def __init__(self, library: str, name: str):
        self.library, self.__name__ = library, name

    def tiny(self) -> Iterator[nn.Module]:
        torch.manual_seed(0)
        if self.library == "timm":
            import timm

            with torch.device("meta"):
                count = sum(p.numel() for p in timm.create_model(self.__name__).parameters())
            if count > LARGEST:
                raise ValueError(f"{count:,} parameters")
            yield timm.create_model(self.__name__, pretrained=False)
        else:
            import torchvision

            named = {"weights": None, "weights_backbone": None, "init_weights": True, "aux_logits": False}
            takes = ("init_weights",) if self.__name__ in ("googlenet", "inception_v3") else ()
            backbone = ("weights_backbone",) if "_mobilenet_v3_large" in self.__name__ or "fcn" in self.__name__ else ()
            yield torchvision.models.get_model(self.__name__, **{k: named[k] for k in ("weights", *takes, *backbone)})

    def ways(self, model: nn.Module) -> Iterator[dict[str, Any]]:
        if self.library == "timm":
            own = model.default_cfg["input_size"]
            sizes = (
                (own,) if model.default_cfg.get("fixed_input_size") else ((own[0], SIDE, SIDE), (own[0], 96, 96), own)
            )
            for size in sizes:
                yield {"x": torch.rand(2, *size)}
            return
        if self.__name__.startswith("raft"):
            yield {name: torch.rand(1, 3, 128, 128) for name in ("image1", "image2")}
        elif self.__name__ in ("r3d_18", "mvit_v2_s", "swin3d_t"):
            for side in (SIDE, 224):
                yield {"x": torch.rand(1, 3, 16, side, side)}
        else:
            for side in (SIDE, 96, 224, 299):
                for name in ("x", "input"):
                    yield {name: torch.rand(2, 3, side, side)}


def kinds() -> dict[str, Network]:
    found = {f"timm/{family}": Network("timm", name) for family, name in FAMILIES.items()}
    return found | {f"torchvision/{name}": Network("torchvision", name) for name in TORCHVISION}
