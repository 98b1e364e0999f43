# Stands in for the export file of a component, to test how the package finds one.
add_library(ctxpar::mpi INTERFACE IMPORTED)
set_target_properties(ctxpar::mpi PROPERTIES INTERFACE_LINK_LIBRARIES ctxpar::ctxpar)
