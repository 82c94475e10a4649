// Rows of sampled images and regions.
#include "kernels/cuda/sampling/sampling.h"

#include "kernels/cuda/support/kernels.h"
#include "kernels/geometry/sampling.h"
#include "kernels/geometry/suppression.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {

std::vector<Kernel> sampling_kernels() {
  return {
      {"GridSample", supports_sampling, prepare_sample_image},
      {"SampleImage", supports_sampling, prepare_sample_image, kDomain},
      {"SampleImageGradInput", supports_sampling, prepare_sample_image_grad_input, kDomain},
      {"SampleImageGradPoints", supports_sampling, prepare_sample_image_grad_points, kDomain},
      {"RoiAlign", supports_sampling, prepare_roi_align, "", "", InputCheck::kChecks},
      {"RoiAlignGrad", supports_sampling, prepare_roi_align_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"RoiAlignMaxGrad", supports_sampling, prepare_roi_align_max_grad, kDomain, "", InputCheck::kCheckedUpstream},
      {"SelectBoxes", supports_box_selection, prepare_select_boxes, kDomain},
      {"MaxRoiPool", supports_sampling, prepare_roi_align, "", "", InputCheck::kChecks},
      {"MaxRoiPoolGrad", supports_sampling, prepare_roi_align_max_grad, kDomain, "", InputCheck::kCheckedUpstream},
  };
}

}  // namespace onnx_train::cuda
