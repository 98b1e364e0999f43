# What the component cuda needs: the CUDA toolkit's runtime, as CUDA::cudart. Read by the package's config and, for a
# program that has this project as a subdirectory, by its CMakeLists.txt. Sets ctxpar_cuda_FOUND, and a sentence in
# ctxpar_cuda_problem where it is false.
find_package(CUDAToolkit 12.4 QUIET)
set(ctxpar_cuda_FOUND FALSE)
set(ctxpar_cuda_problem "")
if(TARGET CUDA::cudart)
    set(ctxpar_cuda_FOUND TRUE)
else()
    string(CONCAT ctxpar_cuda_problem "The component \"cuda\" of ctxpar needs the CUDA toolkit, 12.4 or newer, "
        "which was not found; set CUDAToolkit_ROOT to where it is.")
endif()
