"""Boxes of COCO's JSON: they go where their pixels go, and what is wrong in a file is one line."""

import json
import subprocess

import numpy as np
import pytest
import tool
from PIL import Image, ImageOps

ROWS_TOOL = tool.COMMAND.parent / "tests" / "rows_tool"
SIZES = [(40, 60), (64, 48), (50, 50), (33, 71)]  # height, width
IDS = [9, 2, 5]  # of categories; their order is that of the classes
CLASS_OF_ID = {2: 0, 5: 1, 9: 2}


def rows(data, out, preprocess="resize(48, 56)", augment="none", seed=0, size=(48, 56), most=0, status=0):
    command = [ROWS_TOOL, data, *size, most, preprocess, augment, seed, out]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    return done.stderr if status else tool.load(out) | {"notes": done.stdout}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """images/, masks/ of the same boxes, each with a value of its own, and boxes.json."""
    root, random = tmp_path_factory.mktemp("boxes"), np.random.default_rng(0)
    for name in ("images", "masks"):
        (root / name).mkdir()
    data = {"images": [], "annotations": [], "categories": [{"id": i, "name": f"kind {i}"} for i in IDS]}
    for image, (height, width) in enumerate(SIZES):
        mask = np.zeros((height, width), np.uint8)
        for part, category in enumerate(IDS):  # one in each third
            w, h = random.integers(6, width // 3), random.integers(6, height - 4)
            left, top = width // 3 * part + random.integers(0, width // 3 - w + 1), random.integers(0, height - h + 1)
            mask[top : top + h, left : left + w] = CLASS_OF_ID[category] + 1
            box = [int(x) for x in (left, top, w, h)]
            data["annotations"].append({"image_id": 10 + image, "category_id": category, "bbox": box, "iscrowd": 0})
        pixels = np.stack([mask * 80] * 3, -1) + random.integers(0, 15, (height, width, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"{image}.png")
        Image.fromarray(mask).save(root / "masks" / f"{image}.png")
        data["images"].append({"id": 10 + image, "file_name": f"{image}.png", "height": height, "width": width})
    (root / "boxes.json").write_text(json.dumps(data))
    return root


def edited(folder, tmp_path, edit):
    """The file with a change, beside links to the pictures."""
    data = json.loads((folder / "boxes.json").read_text())
    edit(data)
    (tmp_path / "images").symlink_to(folder / "images")
    (tmp_path / "annotations.json").write_text(json.dumps(data))
    return tmp_path / "annotations.json"


def original(folder, image):
    data = json.loads((folder / "boxes.json").read_text())
    found = [(CLASS_OF_ID[a["category_id"]], *a["bbox"]) for a in data["annotations"] if a["image_id"] == 10 + image]
    return np.array([[label, x, y, x + w, y + h] for label, x, y, w, h in found], float)


GEOMETRY = {
    "resize(48, 56)": lambda h, w: (56 / w, 48 / h, 0, 0),
    "resize(80), crop(48, 56)": None,
    "letterbox(48, 56)": lambda h, w: letterbox(h, w, 48, 56),
}


def letterbox(height, width, to_height, to_width):
    """Scales and shifts, in width and height."""
    ratio = min(to_height / height, to_width / width)
    h, w = round(height * ratio), round(width * ratio)
    return w / width, h / height, round((to_width - w) / 2 - 0.1), round((to_height - h) / 2 - 0.1)


@pytest.mark.parametrize("preprocess", [key for key, map_of in GEOMETRY.items() if map_of])
def test_boxes_are_scaled_and_shifted_as_their_pictures(folder, tmp_path, preprocess):
    found = rows(folder / "boxes.json", tmp_path / "x.npz", preprocess)["boxes"]
    for image, (height, width) in enumerate(SIZES):
        x, y, right, down = GEOMETRY[preprocess](height, width)
        wanted = original(folder, image) * [1, x, y, x, y] + [0, right, down, right, down]
        np.testing.assert_allclose(found[image], wanted, rtol=1e-6, atol=1e-5)


def test_a_letterbox_is_grey_around_the_whole_picture(folder, tmp_path):
    found = rows(folder / "boxes.json", tmp_path / "x.npz", "letterbox(48, 56)")["image"]
    for image, (height, width) in enumerate(SIZES):
        x, y, left, top = letterbox(height, width, 48, 56)
        picture = Image.open(folder / "images" / f"{image}.png").resize((round(width * x), round(height * y)), Image.BILINEAR)
        wanted = Image.new("RGB", (56, 48), (114,) * 3)
        wanted.paste(picture, (left, top))
        np.testing.assert_allclose(255 * found[image].transpose(1, 2, 0), np.asarray(wanted), atol=1e-3)


AUGMENTS = [
    ("resize(48, 56)", "flip, vflip"), ("resize(48, 56)", "rotate(40)"), ("letterbox(48, 56)", "pad_crop(9), flip"),
    ("resize(60), crop(48, 56)", "random_crop"), ("resize(48, 56)", "random_resized_crop(scale=(0.2, 0.8)), flip, rotate(10)"),
    ("resize(48, 56)", "randaugment(3, 20)"), ("letterbox(48, 56)", "jitter(0.3), rotate(20), flip, vflip(0.3), erase(1)"),
]  # fmt: skip


@pytest.mark.parametrize("preprocess, augment", AUGMENTS, ids=[augment for _, augment in AUGMENTS])
def test_boxes_go_where_the_pixels_go(folder, tmp_path, preprocess, augment):
    """A mask is moved pixel by pixel, with the same random numbers."""
    seen = left_out = 0
    for seed in range(3):
        masks = rows(folder, tmp_path / "masks.npz", preprocess, augment, seed)
        found = rows(folder / "boxes.json", tmp_path / "boxes.npz", preprocess, augment, seed)
        np.testing.assert_array_equal(found["image"], masks["image"])
        for boxes, mask in zip(found["boxes"], masks["boxes"]):
            assert (boxes[boxes[:, 0] < 0] == [-1, 0, 0, 0, 0]).all()
            for label in range(3):
                y, x = np.nonzero(mask == label + 1)
                box = boxes[boxes[:, 0] == label, 1:]
                pixels = np.array([x.min(), y.min(), x.max() + 1, y.max() + 1]) if len(x) else np.zeros(4)
                edges = np.array([0, 0, 56, 48])
                if len(box) == 0:  # hardly anything is left, at a border
                    left_out += 1
                    assert len(x) == 0 or (np.abs(pixels - edges) < 2).any()
                    continue
                seen += 1
                # A turned box may be cut where its corner, and nothing else, would be.
                turned = "rotate" in augment or "rand" in augment.split("_")[0]
                inside = ([1, 1, -1, -1] * (pixels - box[0]) > -1.6).all()
                assert inside and (len(x) > 0 or turned)
                if not turned or not (np.abs(pixels - edges) < 2).any():
                    np.testing.assert_allclose(box[0], pixels, atol=1.6)
    assert seen > 20 and (left_out > 0 or "resized_crop" not in augment)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("of_what", ["what is shown", "what is stored"])
def test_masks_and_boxes_are_where_a_picture_that_exif_turns_has_them(tmp_path, orientation, suffix, of_what):
    """A white rectangle on black: of the picture as it is shown, or, where the sides tell, of what the file stores."""
    if of_what == "what is stored" and orientation < 5:
        return  # of one size with what is shown, which it is then taken for
    stored = np.zeros((24, 40), np.uint8)
    stored[2:8, 3:15] = 1
    exif = Image.Exif()
    exif[0x0112] = orientation
    for name in ("images", "masks"):
        (tmp_path / "data" / name).mkdir(parents=True)
    file = tmp_path / "data" / "images" / f"a.{suffix}"
    options = {"lossless": True} if suffix == "webp" else {"quality": 100} if suffix == "jpg" else {}
    Image.fromarray(np.stack([stored * 255] * 3, -1)).save(file, exif=exif, **options)
    shown = np.asarray(ImageOps.exif_transpose(Image.open(file)))[:, :, 0] > 127
    labelled = shown if of_what == "what is shown" else stored > 0
    Image.fromarray(labelled.astype(np.uint8)).save(tmp_path / "data" / "masks" / "a.png")
    size = shown.shape
    found = rows(tmp_path / "data", tmp_path / "x.npz", f"resize({size[0]}, {size[1]}), scale(1/255)", size=size)
    np.testing.assert_array_equal(found["image"][0, 0] > 0.5, shown)
    np.testing.assert_array_equal(found["boxes"][0], shown)  # the masks, under the name of the target
    y, x = np.nonzero(labelled)
    box = [int(n) for n in (x.min(), y.min(), x.max() + 1 - x.min(), y.max() + 1 - y.min())]
    coco = {"images": [{"id": 1, "file_name": f"data/images/a.{suffix}", "height": labelled.shape[0], "width": labelled.shape[1]}],
            "annotations": [{"image_id": 1, "category_id": 1, "bbox": box}], "categories": [{"id": 1, "name": "a"}]}  # fmt: skip
    (tmp_path / "boxes.json").write_text(json.dumps(coco))
    found = rows(tmp_path / "boxes.json", tmp_path / "x.npz", f"resize({size[0]}, {size[1]}), scale(1/255)", size=size)
    y, x = np.nonzero(shown)
    np.testing.assert_allclose(found["boxes"][0, 0], [0, x.min(), y.min(), x.max() + 1, y.max() + 1])


def test_changes_of_colour_leave_boxes_alone(folder, tmp_path):
    wanted = rows(folder / "boxes.json", tmp_path / "x.npz", augment="flip", seed=3)["boxes"]
    found = rows(folder / "boxes.json", tmp_path / "y.npz", augment="flip, jitter(0.5), erase(1)", seed=3)["boxes"]
    np.testing.assert_array_equal(found, wanted)


def test_crowds_and_empty_boxes_are_left_out_and_said(folder, tmp_path):
    def edit(data):
        data["annotations"][0]["iscrowd"] = 1
        data["annotations"][1]["bbox"][2] = 0
        data["annotations"][2]["bbox"] = [500, 500, 4, 4]
        data["annotations"] = data["annotations"][:3] + [a for a in data["annotations"][3:] if a["image_id"] != 11]

    found = rows(edited(folder, tmp_path, edit), tmp_path / "x.npz")
    assert found["notes"].count("left out") == 2 and "1 box of crowds" in found["notes"] and "2 boxes without area" in found["notes"]
    assert (found["boxes"][:2] == [-1, 0, 0, 0, 0]).all() and (found["boxes"][2:, :, 0] >= 0).all()
    folder_too = rows(tmp_path, tmp_path / "y.npz")  # with annotations.json
    np.testing.assert_array_equal(folder_too["boxes"], found["boxes"])


def change(path, value):
    """Sets data[path[0]][path[1]]...; `value` None removes it."""

    def edit(data):
        for key in path[:-1]:
            data = data[key]
        data.update({path[-1]: value}) if value is not None else data.pop(path[-1])

    return edit


HOSTILE = {
    "no_images": (change(["images"], None), "has no list 'images'"),
    "no_categories": (change(["categories"], {"a": 1}), "has no list 'categories'"),
    "nothing": (change(["images"], []), "names no pictures"),
    "missing": (lambda data: data["images"][2].update(file_name="no.png"), "images[2]: there is no picture at"),
    "no_name": (lambda data: data["images"][0].update(file_name=7), "images[0] has no text 'file_name'"),
    "image_twice": (lambda data: data["images"][1].update(id=10), "images[1] has the id 10 of another one"),
    "category_twice": (lambda data: data["categories"][1].update(id=9), "categories[1] has the id 9 of another one"),
    "name_twice": (lambda data: data["categories"][1].update(name="kind 9"), "has the name 'kind 9' of another one"),
    "negative": (lambda data: data["annotations"][3].update(bbox=[1, 2, -3, 4]), "annotations[3] has a 'bbox' of -3 x 4 pixels"),
    "text": (lambda data: data["annotations"][3].update(bbox=[1, 2, "3", 4]), "annotations[3] has no 'bbox' of four numbers"),
    "three": (lambda data: data["annotations"][3].update(bbox=[1, 2, 3]), "annotations[3] has no 'bbox' of four numbers"),
    "no_box": (lambda data: data["annotations"][3].pop("bbox"), "annotations[3] has no 'bbox' of four numbers"),
    "stranger": (lambda data: data["annotations"][3].update(image_id=99), "is of the image 99, which is not in 'images'"),
    "no_category": (lambda data: data["annotations"][3].update(category_id=1), "is of the category 1, which"),
    "fraction": (lambda data: data["annotations"][3].update(category_id=1.5), "annotations[3] has no whole number 'category_id'"),
    "no_object": (lambda data: data["annotations"].insert(0, 3), "annotations[0] is no object"),
    "huge": (lambda data: data["images"][0].update(width=10**12), "images[0] has 1000000000000 x 40 pixels"),
    "other_size": (lambda data: data["images"][0].update(width=61), "images[0] 61 x 40"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_wrong_in_a_file_is_one_line(folder, tmp_path, name):
    edit, why = HOSTILE[name]
    message = rows(edited(folder, tmp_path, edit), tmp_path / "x.npz", status=1)
    assert message.count("\n") == 1 and "annotations.json" in message and why in message


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", '{"images": NaN}', '{"images": 1e999}', "[" * 100000, b"\xff\xfe{}"])
def test_what_is_no_json_is_one_line(tmp_path, text):
    (tmp_path / "x.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    message = rows(tmp_path / "x.json", tmp_path / "x.npz", status=1)
    assert message.count("\n") == 1 and "x.json" in message and len(message) < 400


def test_a_target_takes_so_many_boxes_and_no_others(folder, tmp_path):
    file = folder / "boxes.json"
    np.testing.assert_array_equal(rows(file, tmp_path / "x.npz", most=5)["boxes"][:, 3:], np.array([[[-1, 0, 0, 0, 0]] * 2] * 4))
    assert "0.png has 3 boxes; the target 'boxes', float[N,2,5], takes 2" in rows(file, tmp_path / "x.npz", most=2, status=1)
    assert "mixup and cutmix mix classes" in rows(file, tmp_path / "x.npz", augment="mixup(0.2)", status=1)
    tool.run("build", tool.ROOT / "models" / "digits_cnn.onnx", "-o", tmp_path / "train.onnx")
    message = tool.run("eval", tmp_path / "train.onnx", "--data", file, status=1)
    assert "has boxes, which the target 'labels', int64[N], does not take" in message.replace("batch", "N")
