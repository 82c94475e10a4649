// How fast a device can be, measured, and how long a node must take at that.
#pragma once

#include <map>
#include <set>

#include "kernels/cost.h"
#include "runtime/session/session.h"

namespace onnx_train {

struct Roofline {
  std::map<DType, double> flops_per_second;  // of a large product, by element type
  double bytes_per_second = 0;               // of an addition of tensors that no cache holds

  // Milliseconds that the products and convolutions take at least; types that were not measured count nothing.
  double arithmetic_milliseconds(const NodeCost& cost) const;
  // That, or what moving the bytes takes, whichever is longer.
  double least_milliseconds(const NodeCost& cost) const;
};

// The rates of products alone, in half a second.
Roofline measure_products(const Session& session, const std::set<DType>& types);

// Measures on the session's device, whose memory holds the operands, with the present number of threads and the
// session's arithmetic: about a second, and 200 MB (800 MB on a fast GPU), for the products of each type in `types` and
// the bytes. What counts is the time of the node, as Stream::time gives it. A type whose products the device does not
// run is left out.
Roofline measure_roofline(const Session& session, const std::set<DType>& types);

}  // namespace onnx_train
