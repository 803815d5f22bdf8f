// File names of external tools and libraries, which differ between operating systems.
#ifndef MLXCEL_COMPILER_TOOLS_H_
#define MLXCEL_COMPILER_TOOLS_H_

#ifdef _WIN32
#define MLX_PATH_SEPARATOR ";"
#define MLX_IREE_COMPILE "iree-compile.exe"
#define MLX_IREE_LIBRARY "IREECompiler.dll"
#define MLX_NVRTC_13 "nvrtc64_130_0.dll"
#define MLX_NVRTC_12 "nvrtc64_120_0.dll"
#define MLX_NVRTC_BUILTINS "nvrtc-builtins64_%d%d.dll"  // major and minor version
#define MLX_NVFATBIN "nvfatbin_%d0_0.dll"               // major version
#define MLX_NVRTC_FOLDER "nvidia/cu13/bin/x86_64"       // inside the wheels
#define MLX_CPP_LIBRARY "msvcp140.dll"  // C++ runtime that iree-compile needs, and how to install it
#define MLX_CPP_LIBRARY_FROM "install Microsoft's Visual C++ redistributable (x64)"
#else
#define MLX_PATH_SEPARATOR ":"
#define MLX_IREE_COMPILE "iree-compile"
#define MLX_IREE_LIBRARY "libIREECompiler.so"
#define MLX_NVRTC_13 "libnvrtc.so.13"
#define MLX_NVRTC_12 "libnvrtc.so.12"
#define MLX_NVRTC_BUILTINS "libnvrtc-builtins.so.%d.%d"
#define MLX_NVFATBIN "libnvfatbin.so.%d"
#define MLX_NVRTC_FOLDER "nvidia/cu13/lib"
#define MLX_CPP_LIBRARY "libstdc++.so.6"
#define MLX_CPP_LIBRARY_FROM \
  "install the system's (Debian: apt-get install libstdc++6; Fedora: dnf install libstdc++)"
#endif

#endif  // MLXCEL_COMPILER_TOOLS_H_
