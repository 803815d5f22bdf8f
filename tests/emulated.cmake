# Tests of a cross build under CMAKE_CROSSCOMPILING_EMULATOR. ctest runs the test programs through the emulator. The
# programs that a test starts need the emulator too, so they are scripts: one runs mlxcel through the emulator, one runs
# this machine's iree-compile for the other machine.
set(emulated ${CMAKE_BINARY_DIR}/emulated)
string(REPLACE ";" " " emulator "${CMAKE_CROSSCOMPILING_EMULATOR}")

function(emulate name file)
  file(GENERATE OUTPUT ${emulated}/${name} CONTENT "#!/bin/sh\nexec ${emulator} -0 \"$0\" ${file} \"$@\"\n"
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
foreach(name mlxcel mlxcel-run mlxcel-bench mlxcel-compile)
  emulate(${name} $<TARGET_FILE:mlxcel>)
endforeach()
emulate(mlxcel_runtime_only $<TARGET_FILE:mlxcel_runtime_only>)
set(mlxcel_binary ${emulated}/mlxcel)
set(mlxcel_runtime_only_binary ${emulated}/mlxcel_runtime_only)

file(CONFIGURE OUTPUT ${emulated}/iree-compile @ONLY CONTENT "#!/bin/sh
# \"host\" is the machine that is emulated.
for flag do
  shift
  case $flag in
    --iree-llvmcpu-target-cpu=host) set -- \"$@\" --iree-llvmcpu-target-cpu=generic --iree-llvmcpu-target-triple=@CMAKE_SYSTEM_PROCESSOR@-linux-gnu ;;
    *) set -- \"$@\" \"$flag\" ;;
  esac
done
exec '@MLXCEL_IREE_COMPILE@' \"$@\"
")
file(CHMOD ${emulated}/iree-compile PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
set(MLXCEL_IREE_COMPILE ${emulated}/iree-compile)

# Tests that are built but not run (docs/internals/testing.md gives the reasons), and tests that are too slow for CI.
set(not_emulated
  arch_gpu_test crowd_gpu_test decode_gpu_test exact_gpu_test generate_gpu_test kernels_gpu_test mixed_gpu_test packed_gpu_test routes_gpu_test sample_gpu_test serve_engines_gpu_test window_gpu_test  # no GPU is emulated
  serve_models_test signals_test                                    # qemu changes how a fault on a mapped file is reported
  leftover_test                                                     # forks hundreds of times; a fork under qemu can deadlock on a lock of qemu itself
  launch_test                                                       # mlxcel starts itself by the path of its own program, which this machine cannot run
  bench_parallel_test                                               # a prompt gets a share of the time, and steps under qemu take too different times for it
  nvrtc_test kernels_test launches_test recurrent_cuda_test plan_test wide_kernels_test quantized_size_test environment_test image_store_test  # NVRTC is a library of this machine
  arch_test arch_packing_test bench_test chat_terminal_test chat_tmux_test chunks_test cli_test cpu_kernels_test generate_test gguf_arch_test)  # too long
set(slowly_emulated act_order_test cache_test crowd_test grammar_test hints_test http_limits_test http_server_test idle_test generic_test gpu_test grammar_limits_test hf_packing_test json_schema_test kill_test oci_test output_format_test output_test packed_directory_test packer_test
  plain_marks_test progress_test pull_test resume_test sampling_test scheduler_test serve_end_test serve_origin_test serve_stored_test serve_test sign_test slow_grammar_test template_test tokenizer_image_test tokenizer_test
  embedding_models_test embedding_verb_test encoder_test sample_row_test serve_embeddings_test serve_memory_test serve_repeat_test tool_memory_test serve_engines_test ranks_test)
set(MLXCEL_TEST_IREE_COMPILE ${MLXCEL_IREE_COMPILE})
