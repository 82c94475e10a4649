// What moves the pixels of a picture, and what changes its colours, as Pillow does it: the results differ by one grey
// level at most, and those of `resized` by none. Masks are moved by the same functions, with Filter::kNearest; of
// pictures without channels the size and `from_original` change alone.
// Functions run on any thread; arguments are in range, which steps.h and augment.h see to.
// Source of the formulas: Pillow 11, Resample.c, Geometry.c, Blend.c, Convert.c, ImageEnhance.py.
#pragma once

#include "runtime/data/images/picture.h"

namespace onnx_train {

enum class Filter { kNearest, kBilinear, kBicubic };

// The part `box` of the picture in another size. Bilinear and bicubic average all pixels that a smaller one covers.
Picture resized(const Picture& from, const Box& box, int height, int width, Filter filter);
Picture resized(const Picture& from, int height, int width, Filter filter);
// The part `box`, which may reach beyond the borders: all channels of pixels there are `border`.
Picture cropped(const Picture& from, const Box& box, uint8_t border = 0);
void flip_left_right(Picture* picture);
void flip_top_bottom(Picture* picture);
// As EXIF's orientation shows it, 1 to 8: 1 changes nothing, 2, 3 and 4 mirror it, 5 to 8 swap the sides.
Picture turned(Picture from, int orientation);

// In the same size; `map` says where a point of the result comes from, and has an inverse. What comes from outside is
// 0. Bicubic is not supported.
Picture moved(const Picture& from, const AffineMap& map, Filter filter);
// The map that does `first`, then `second`.
AffineMap then(const AffineMap& first, const AffineMap& second);
// Around the middle, by degrees, against the clock.
AffineMap rotation(const Picture& picture, double degrees);

// 3 channels to 1, or 1 to 3.
Picture to_grey(const Picture& from);
Picture to_rgb(const Picture& from);
// 1 leaves the picture as it is; 0 is black, its mean grey level, its grey levels.
void change_brightness(Picture* picture, double factor);
void change_contrast(Picture* picture, double factor);
void change_saturation(Picture* picture, double factor);
// By `turn` of the circle of colours, -0.5 to 0.5. Grey pictures have none.
void change_hue(Picture* picture, double turn);

// Replaces each value v of every channel by table[v].
void map_values(Picture* picture, const uint8_t (&table)[256]);
// Stretches the values of each channel to 0 to 255.
void stretch_contrast(Picture* picture);
// Makes the histogram of each channel flat.
void equalize(Picture* picture);
// 0 is smoothed, 1 as it is, 2 sharper.
void change_sharpness(Picture* picture, double factor);

}  // namespace onnx_train
