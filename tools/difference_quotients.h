// Tells a wrong derivative from one that difference quotients cannot check: a kink (ReLU, Max, a pool) near the point.
// Plain values; any thread.
//
// The loss along a line is evaluated at several distances to both sides. A wrong derivative differs from all quotients
// by much more than they differ among themselves; next to a kink, quotients of different steps or sides differ, too.
#pragma once

#include <functional>

namespace onnx_train {

struct SlopeCheck {
  double numeric = 0;  // the central difference that is most certain
  double error = 0;    // |analytic - numeric| / max(|analytic|, |numeric|, size); infinite where one is not finite
  // Whether some step's quotient agrees within the tolerance, or within what rounding of the loss makes of it.
  bool agrees = false;
  // |analytic - numeric| in units of what quotients of different steps and sides differ by: large where the loss is
  // smooth and the derivative is wrong, of the order of 1 where a kink is near.
  double contrast = 0;
};

// `loss(t)` at distance t along the line, `analytic` its derivative at 0; `size` is what derivatives along such lines
// are usually like, so that a line nearly along a contour does not magnify the error. `step` is the first distance.
SlopeCheck check_slope(const std::function<double(double)>& loss, double analytic, double size, double step,
                       double tolerance);

}  // namespace onnx_train
