"""Pictures against Pillow: what is decoded, and what changes them."""

import io
import struct
import subprocess
import zlib

import numpy as np
import pytest
import tool
from PIL import Image, ImageEnhance, ImageOps

PICTURE_TOOL = tool.COMMAND.parent / "tests" / "picture_tool"


def shown(path, *change, status=0):
    """The picture, uint8[height, width, channels], after a change; or the message."""
    result = subprocess.run([PICTURE_TOOL, path, *map(str, change)], capture_output=True)
    assert result.returncode == status, result.stderr
    if status != 0:
        return result.stderr.decode()
    height, width, channels = np.frombuffer(result.stdout[:12], np.int32)
    return np.frombuffer(result.stdout[12:], np.uint8).reshape(height, width, channels)


def picture(height=60, width=83, seed=0):
    """Smooth, with noise and a sharp edge."""
    y, x = np.mgrid[:height, :width]
    waves = [127 + 100 * np.sin(x / 9 + c) * np.cos(y / (7 + c)) for c in range(3)]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width, 3))
    pixels = np.stack(waves, -1) + noise
    pixels[:, width // 2 :] += 40
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def assert_close(found, wanted, most=1):
    wanted = np.asarray(wanted)
    wanted = wanted if wanted.ndim == 3 else wanted[..., None]
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= most


def png(width, height, bits, interlacing, rows):
    """An RGB file of kinds that Pillow does not write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, 2, 0, 0, interlacing))
    contents = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))) if rows else b""
    return b"\x89PNG\r\n\x1a\n" + header + contents + (chunk(b"IEND", b"") if rows else b"")


def with_sixteen_bits(path):
    pixels = np.random.default_rng(1).integers(0, 1 << 16, (5, 7, 3), dtype=np.uint16)
    path.write_bytes(png(7, 5, 16, 0, [row.astype(">u2") for row in pixels]))
    return np.round(pixels / 257).astype(int)


def interlaced(pixels):
    passes = [(0, 8, 0, 8), (0, 8, 4, 8), (4, 8, 0, 4), (0, 4, 2, 4), (2, 4, 0, 2), (0, 2, 1, 2), (1, 2, 0, 1)]
    rows = [row for top, down, left, right in passes for row in pixels[top::down, left::right] if row.size > 0]
    return png(pixels.shape[1], pixels.shape[0], 8, 1, rows)


FORMATS = {
    "rgb.png": {}, "rgba.png": {"mode": "RGBA"}, "grey.png": {"mode": "L"}, "grey_alpha.png": {"mode": "LA"},
    "palette.png": {"mode": "P"}, "bits.png": {"mode": "1"}, "rgb.jpg": {}, "grey.jpg": {"mode": "L"},
    "progressive.jpg": {"progressive": True}, "cmyk.jpg": {"mode": "CMYK"}, "fine.jpeg": {"subsampling": 0, "quality": 95},
    "small.jpg": {"subsampling": 2, "quality": 40}, "lossy.webp": {"quality": 60}, "lossless.webp": {"lossless": True},
    "alpha.webp": {"mode": "RGBA", "lossless": True},
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_is_what_pillow_reads(name, tmp_path):
    options = dict(FORMATS[name])
    mode = options.pop("mode", "RGB")
    original = picture()
    if mode in ("RGBA", "LA"):
        original.putalpha(Image.fromarray(np.full((60, 83), 90, np.uint8)))
    original.convert(mode).save(tmp_path / name, **options)
    stored = Image.open(tmp_path / name)
    assert_close(shown(tmp_path / name), stored.convert("L" if mode in ("L", "LA", "1") else "RGB"))


def test_16_bits_become_8_and_interlaced_files_are_read(tmp_path):
    wanted = with_sixteen_bits(tmp_path / "x.png")
    assert_close(shown(tmp_path / "x.png"), wanted)
    original = np.asarray(picture(13, 11))
    (tmp_path / "interlaced.png").write_bytes(interlaced(original))
    assert_close(shown(tmp_path / "interlaced.png"), original, most=0)


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_file_is_turned_as_its_exif_orientation_says(orientation, name, tmp_path):
    exif = Image.Exif()
    exif[0x010F] = "a maker, before the orientation"
    exif[0x0112] = orientation
    picture(16, 24).save(tmp_path / name, exif=exif)
    turned = ImageOps.exif_transpose(Image.open(tmp_path / name))
    assert turned.size == ((16, 24) if orientation > 4 else (24, 16))
    assert_close(shown(tmp_path / name), turned)


def test_a_damaged_exif_block_turns_nothing(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    for name in ("x.jpg", "x.png", "x.webp"):
        picture(16, 24).save(tmp_path / name, exif=exif)
        whole = (tmp_path / name).read_bytes()
        at = whole.index(b"II*\0") if b"II*\0" in whole else whole.index(b"MM\0*")
        for block in (b"II*\0\xff\xff\xff\xff", b"MM\0*\xff\xff\xff\xff", b"II*\0\x08\0\0\0\xff\xff", b"\0" * 8):
            damaged = whole[:at] + block + whole[at + len(block) :]
            if name == "x.png":  # libpng drops a chunk whose checksum is wrong, with a warning
                start = damaged.index(b"eXIf")
                length = struct.unpack(">I", damaged[start - 4 : start])[0]
                damaged = damaged[: start + 4 + length] + struct.pack(">I", zlib.crc32(damaged[start : start + 4 + length])) + damaged[start + 8 + length :]
            (tmp_path / name).write_bytes(damaged)
            assert sorted(shown(tmp_path / name).shape[:2]) == [16, 24]


def test_masks_keep_their_classes(tmp_path):
    classes = np.random.default_rng(0).integers(0, 21, (9, 13), dtype=np.uint8)
    palette = Image.fromarray(classes, "L").convert("P")
    palette.putdata(classes.ravel().tolist())
    palette.save(tmp_path / "palette.png")
    Image.fromarray(classes).save(tmp_path / "grey.png")
    Image.fromarray(classes.astype(np.uint16) * 300).save(tmp_path / "wide.png")
    Image.fromarray(classes % 2 == 1).save(tmp_path / "bits.png")
    picture().save(tmp_path / "colours.png")
    for name, wanted in {"palette": classes, "grey": classes, "wide": classes.astype(int) * 300, "bits": classes % 2}.items():
        high, low = np.moveaxis(shown(tmp_path / f"{name}.png", "mask").astype(int), -1, 0)
        np.testing.assert_array_equal(high * 256 + low, wanted, err_msg=name)
    assert "it has colours" in shown(tmp_path / "colours.png", "mask", status=1)


def bytes_of(kind, **options):
    file = io.BytesIO()
    picture().save(file, kind, **options)
    return file.getvalue()


DAMAGED = {
    "nothing.png": (b"", "the file is empty"),
    "text.jpg": (b"no picture at all", "no PNG, JPEG or WebP file"),
    "huge.png": (png(60000, 60000, 8, 0, [np.zeros(1, np.uint8)]), "60000 x 60000 pixels; at most 89478485"),
    "header.png": (png(10, 10, 8, 0, [])[:20], "cut off"),
    "half.png": (bytes_of("PNG")[:4000], "cut off"),
    "half.jpg": (bytes_of("JPEG")[:1500], "premature end"),
    "half.webp": (bytes_of("WEBP", lossless=True)[:2000], "cut off or damaged"),
    "checksum.png": (png(10, 10, 8, 0, [])[:-1] + b"\0", "CRC"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_one_error_that_names_it(name, tmp_path):
    contents, why = DAMAGED[name]
    (tmp_path / name).write_bytes(contents)
    message = shown(tmp_path / name, status=1)
    assert message.count("\n") == 1 and str(tmp_path / name) in message and why.lower() in message.lower()


FILTERS = {"bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC, "nearest": Image.NEAREST}


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [(20, 31), (59, 83), (60, 40), (113, 200), (1, 1), (60, 83)])
def test_resized_pictures_equal_pillows(name, mode, size, tmp_path):
    picture().convert(mode).save(tmp_path / "x.png")
    wanted = picture().convert(mode).resize(size[::-1], FILTERS[name])
    assert_close(shown(tmp_path / "x.png", name, *size), wanted, most=0)


CHANGES = {
    ("flip",): ImageOps.mirror, ("vflip",): ImageOps.flip, ("grey",): lambda p: p.convert("L"),
    ("crop", -3, 5, 50, 90): lambda p: p.crop((5, -3, 95, 47)),
    ("rotate", 15): lambda p: p.rotate(15, Image.BILINEAR), ("rotate", -170): lambda p: p.rotate(-170, Image.BILINEAR),
    ("brightness", 0.6): lambda p: ImageEnhance.Brightness(p).enhance(0.6),
    ("brightness", 1.4): lambda p: ImageEnhance.Brightness(p).enhance(1.4),
    ("contrast", 0.6): lambda p: ImageEnhance.Contrast(p).enhance(0.6),
    ("contrast", 1.4): lambda p: ImageEnhance.Contrast(p).enhance(1.4),
    ("saturation", 0.6): lambda p: ImageEnhance.Color(p).enhance(0.6),
    ("saturation", 1.4): lambda p: ImageEnhance.Color(p).enhance(1.4),
    ("sharpness", 0.1): lambda p: ImageEnhance.Sharpness(p).enhance(0.1),
    ("sharpness", 1.9): lambda p: ImageEnhance.Sharpness(p).enhance(1.9),
    ("autocontrast",): ImageOps.autocontrast, ("equalize",): ImageOps.equalize,
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "_".join(map(str, change)))
def test_changed_pictures_equal_pillows(change, tmp_path):
    original = Image.fromarray((np.asarray(picture()) * 0.7 + 20).astype(np.uint8))
    original.save(tmp_path / "x.png")
    assert_close(shown(tmp_path / "x.png", *change), CHANGES[change](original))


@pytest.mark.parametrize("turn", [0.1, -0.3])
def test_a_hue_is_turned_as_by_pillows_conversions(turn, tmp_path):
    picture().save(tmp_path / "x.png")
    hue, saturation, value = picture().convert("HSV").split()
    turned = Image.fromarray((np.asarray(hue).astype(int) + int(turn * 255)).astype(np.uint8))
    assert_close(shown(tmp_path / "x.png", "hue", turn), Image.merge("HSV", (turned, saturation, value)).convert("RGB"))


def test_a_picture_may_not_be_read():
    assert "there is no picture at" in shown("/no/such.png", status=1)
    assert "there is no picture at" in shown("/", status=1)
