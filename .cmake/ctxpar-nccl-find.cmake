# What the component nccl needs: NCCL's header and library, as ctxpar::nccl_library, and the component cuda. Read like
# ctxpar-cuda-find.cmake. NCCL brings no CMake package; where it does not lie beside the CUDA toolkit or in the system's
# folders, NCCL_ROOT says where. Sets ctxpar_nccl_FOUND, and a sentence in ctxpar_nccl_problem where it is false.
include("${CMAKE_CURRENT_LIST_DIR}/ctxpar-cuda-find.cmake")
set(ctxpar_nccl_FOUND FALSE)
set(ctxpar_nccl_problem "${ctxpar_cuda_problem}")
if(ctxpar_cuda_FOUND)
    set(ctxpar_nccl_hints ${NCCL_ROOT} $ENV{NCCL_ROOT} $ENV{NCCL_HOME})
    find_path(CTXPAR_NCCL_INCLUDE_DIR nccl.h HINTS ${ctxpar_nccl_hints} PATHS ${CUDAToolkit_INCLUDE_DIRS}
        PATH_SUFFIXES include)
    find_library(CTXPAR_NCCL_LIBRARY nccl HINTS ${ctxpar_nccl_hints} PATHS ${CUDAToolkit_LIBRARY_DIR}
        PATH_SUFFIXES lib lib64)
    mark_as_advanced(CTXPAR_NCCL_INCLUDE_DIR CTXPAR_NCCL_LIBRARY)
    unset(ctxpar_nccl_hints)

    set(ctxpar_nccl_version "")
    if(CTXPAR_NCCL_INCLUDE_DIR)
        file(STRINGS "${CTXPAR_NCCL_INCLUDE_DIR}/nccl.h" ctxpar_nccl_version
            REGEX "^#define NCCL_(MAJOR|MINOR) +[0-9]+$")
        string(REGEX REPLACE ".*MAJOR +([0-9]+).*MINOR +([0-9]+).*" "\\1.\\2" ctxpar_nccl_version
            "${ctxpar_nccl_version}")
    endif()

    if(NOT CTXPAR_NCCL_INCLUDE_DIR OR NOT CTXPAR_NCCL_LIBRARY)
        string(CONCAT ctxpar_nccl_problem "The component \"nccl\" of ctxpar needs NCCL, whose nccl.h or library was "
            "not found; set NCCL_ROOT to where it is.")
    elseif(ctxpar_nccl_version VERSION_LESS 2.18)
        string(CONCAT ctxpar_nccl_problem "The component \"nccl\" of ctxpar needs NCCL 2.18 or newer; "
            "${CTXPAR_NCCL_INCLUDE_DIR}/nccl.h is of version ${ctxpar_nccl_version}.")
    else()
        set(ctxpar_nccl_FOUND TRUE)
        if(NOT TARGET ctxpar::nccl_library)
            add_library(ctxpar::nccl_library UNKNOWN IMPORTED)
            set_target_properties(ctxpar::nccl_library PROPERTIES
                IMPORTED_LOCATION "${CTXPAR_NCCL_LIBRARY}"
                INTERFACE_INCLUDE_DIRECTORIES "${CTXPAR_NCCL_INCLUDE_DIR}")
            if(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL)
                set_target_properties(ctxpar::nccl_library PROPERTIES IMPORTED_GLOBAL TRUE)
            endif()
        endif()
    endif()
    unset(ctxpar_nccl_version)
endif()
