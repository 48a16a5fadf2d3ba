"""inductor:cpu answers differently from eager:cpu: numeric/nonfinite at $.

Model: graph of 1 operator, left of the 4 of decoder:Decoder (seed decoder): the end of a segmenter: a depthwise and a pointwise convolution, then bilinear resizing to four times the size
What differs: 506 of 576 elements are not finite alike: 506 NaN only in the target
Seen with: torch 2.14.1, torchvision 0.29.1, onnxruntime 1.32.0, onnx 1.23.2, python 3.11.7, cpu AMD EPYC, os Linux-6.18.44-fc-v657-x86_64-with-glibc2.36
Run: python repro.py. Exits 1 while the difference is there, 0 when it is gone, 2 when it cannot run here.
"""

import sys

import torch


class Model(torch.nn.Module):
    def forward(self, conv2d_1):
        return torch.ops.aten.upsample_bilinear2d.vec(conv2d_1, [24, 24], True, None)


def inputs():
    inf = float("inf")
    return {'conv2d_1': torch.tensor([[[[0.0, 0.0], [inf, 0.0]]]], dtype=torch.float32)}


def target(module, sample):
    return torch.compile(module, backend='inductor')(*sample.values())


def main():
    print(f"torch {torch.__version__}")
    torch.manual_seed(14)
    wide = [x.double() if x.is_floating_point() else x for x in inputs().values()]
    try:
        with torch.no_grad():
            answers = {
                "eager:cpu": Model()(*inputs().values()),
                "inductor:cpu": target(Model().eval(), inputs()),
                "float64": Model().double()(*wide),
            }
    except Exception as error:  # another version may refuse the module, or a device be missing
        print(f"cannot run here: {error}")
        return 2
    for name, answer in answers.items():
        print(f"{name}: {answer}")
    a, b, _ = (x.cpu().to(torch.complex128 if x.is_complex() else torch.float64) for x in answers.values())
    differ = a.shape != b.shape or bool((~(a.isfinite() & b.isfinite()) & (a != b) & ~((a != a) & (b != b))).any())
    print("they differ" if differ else "the difference is gone")
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
