// The configuration of an image of attention_f32.cu: that of both attention kernels.
#pragma once

#include "attention_config.cuh"
