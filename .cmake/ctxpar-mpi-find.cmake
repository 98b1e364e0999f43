# What the component mpi needs: MPI of version 3 or newer, as MPI::MPI_CXX. Read like ctxpar-cuda-find.cmake. Sets
# ctxpar_mpi_FOUND, and a sentence in ctxpar_mpi_problem where it is false.
set(ctxpar_mpi_FOUND FALSE)
set(ctxpar_mpi_problem "The component \"mpi\" of ctxpar needs MPI 3 or newer, which was not found.")
set(MPI_CXX_SKIP_MPICXX TRUE) # the former C++ interface of MPI
find_package(MPI 3.0 QUIET COMPONENTS CXX)
if(MPI_CXX_FOUND)
    set(ctxpar_mpi_FOUND TRUE)
    set(ctxpar_mpi_problem "")
    get_target_property(ctxpar_mpi_is_global MPI::MPI_CXX IMPORTED_GLOBAL) # as it is where another directory asked
    if(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL AND NOT ctxpar_mpi_is_global)
        set_target_properties(MPI::MPI_CXX PROPERTIES IMPORTED_GLOBAL TRUE)
    endif()
endif()
