"""Vision: an image becomes patches, the tower and the aligner turn them into vectors, these take a span of the prompt.

Source: the released ``inference/image_processor.py`` and ``inference/model.py``; report section 4.2.2.
"""

from ds41.vision.images import load_image, patches_of
from ds41.vision.loading import load_vision
from ds41.vision.sizes import ImageError, ImagePlan, plan_image
from ds41.vision.spans import ExpandedPrompt, Role, expand_images, span_roles
from ds41.vision.tower import Aligner, Vision, VisionTower

__all__ = [
    "Aligner",
    "ExpandedPrompt",
    "ImageError",
    "ImagePlan",
    "Role",
    "Vision",
    "VisionTower",
    "expand_images",
    "load_image",
    "load_vision",
    "patches_of",
    "plan_image",
    "span_roles",
]
